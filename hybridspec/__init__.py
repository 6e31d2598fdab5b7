"""hybridspec: gated hybrid speculative decoding for SGLang.

The folders beside this file are links to the repository's rooms; see ``docs/architecture.md``.
"""

__version__ = "0.1.0"
