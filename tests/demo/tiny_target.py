"""A tiny random target, as transformers saves it, for the tests of the EAGLE3 trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

TAPS = (2, 3, 5)


def save_tiny_target(path: Path) -> Path:
    """Write a random Llama of eight layers; skips the test where transformers is absent."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=2,
        rope_theta=10000.0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path
