"""The SGLang plugin. Only this folder imports ``sglang``."""
