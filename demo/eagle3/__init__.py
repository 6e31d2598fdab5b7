"""Trainer of EAGLE-3 draft heads for small Llama-type targets (arXiv 2503.01840)."""
