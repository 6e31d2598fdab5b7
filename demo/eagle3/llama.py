"""A Llama-type target in plain PyTorch, for generating text and capturing hidden states quickly.

Reads a Hugging Face folder. The caller owns the KV cache.

This module knows nothing of drafts, SGLang or training: it never needs a gradient.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from hybridspec.demo.eagle3.kv_cache import KVCache

# (layer, q, k, v), each [rows, heads, length, dim], to the mixed values, shaped as q.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The parts of a Llama ``config.json`` that the forward pass needs."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    max_positions: int
    norm_eps: float
    tied: bool
    eos: tuple[int, ...]

    @classmethod
    def read(cls, folder: Path) -> LlamaShape:
        """Read ``folder/config.json``.

        Raises:
            ValueError: not a Llama-type model, or its RoPE is scaled (not supported here).
        """
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config.get("model_type") != "llama":
            raise ValueError(f"{folder} is a {config.get('model_type')!r} model; llama is needed")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"{folder} scales its RoPE ({rope['rope_type']}), not supported")
        eos = config["eos_token_id"]
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied=bool(config.get("tie_word_embeddings")),
            eos=tuple(eos) if isinstance(eos, list) else (eos,),
        )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, computed in float32 and returned in x's dtype."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight


def rope_tables(shape: LlamaShape, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, each ``[length, head_dim]`` (halves repeated)."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length).float(), shape.rope_theta**-exponent)
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding (Llama's half-split layout) over x's last axis."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class LlamaTarget:
    """The target's weights and its two forward passes. Never mutates its weights."""

    def __init__(
        self, folder: Path, dtype: torch.dtype = torch.bfloat16, taps: tuple[int, ...] = ()
    ) -> None:
        """Load the weights.

        Args:
            folder: Hugging Face folder with one ``model.safetensors``.
            dtype: of the weights and activations.
            taps: layers whose *input* (the residual stream, as SGLang captures it) the forward
                passes return, in this order.
        """
        self.shape = LlamaShape.read(folder)
        self.taps = taps
        raw = {k: v.to(dtype) for k, v in load_file(folder / "model.safetensors").items()}
        self.embed = raw["model.embed_tokens.weight"]
        self.head = self.embed if self.shape.tied else raw["lm_head.weight"]
        self.norm = raw["model.norm.weight"]
        self.layers = [_Layer(raw, i) for i in range(self.shape.layers)]
        self.cos, self.sin = rope_tables(self.shape, self.shape.max_positions, dtype)

    @torch.inference_mode()
    def prefill(self, ids: Tensor, cache: KVCache | None, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Run whole right-padded prompts from position 0.

        Args:
            ids: int64 ``[rows, length]``. Causality makes the padding at the end harmless.
            cache: written from position 0 of ``slots``; ``None`` to keep nothing.
            slots: int64 ``[rows]``.

        Returns:
            Final normed hidden states ``[rows, length, hidden]`` and the tapped states
            ``[rows, length, len(taps) * hidden]``.
        """
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        where: list[int] = slots.tolist()
        if cache is not None:
            cache.reserve(where, length)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if cache is not None:
                cache.put_prompts(layer, where, k, v)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return self._run(ids, cos, sin, attend)

    @torch.inference_mode()
    def decode(self, ids: Tensor, positions: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Run one token of every slot.

        Args:
            ids: int64 ``[slots]``.
            positions: int64 ``[slots]``, where each token stands; written to the cache.
            cache: read up to each token's own position.

        Returns:
            As :meth:`prefill`, with length 1.
        """
        rows, shape = ids.shape[0], self.shape
        cos, sin = self.cos[positions][:, None, None], self.sin[positions][:, None, None]
        # The query heads of one KV head become query rows: no repeated keys.
        group, dim = shape.heads // shape.kv_heads, shape.head_dim
        cache.begin_step(positions, group)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = cache.attend(
                layer, q.reshape(-1, group, dim), k.reshape(-1, dim), v.reshape(-1, dim)
            )
            return mixed.reshape(rows, shape.heads, 1, dim)

        return self._run(ids[:, None], cos, sin, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """Output scores ``[..., vocab]`` of final normed hidden states."""
        return F.linear(hidden, self.head)

    def _run(self, ids: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        (rows, length), shape = ids.shape, self.shape
        x = F.embedding(ids, self.embed)
        kept: list[Tensor] = []
        heads = [shape.heads, shape.kv_heads, shape.kv_heads]
        for index, layer in enumerate(self.layers):
            if index in self.taps:
                kept.append(x)
            y = F.linear(rms_norm(x, layer.attention_norm, shape.norm_eps), layer.qkv)
            y = y.view(rows, length, sum(heads), shape.head_dim).transpose(1, 2)
            q, k, v = torch.split(y, heads, 1)
            out = attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)
            x = x + F.linear(out.transpose(1, 2).reshape(rows, length, -1), layer.out)
            y = F.linear(rms_norm(x, layer.mlp_norm, shape.norm_eps), layer.gate_up)
            gate, up = y.chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        taps = torch.cat(kept, -1) if kept else x[..., :0]
        return rms_norm(x, self.norm, shape.norm_eps), taps


class _Layer:
    """One decoder layer's weights, with q/k/v and gate/up fused into one product each."""

    def __init__(self, raw: dict[str, Tensor], index: int) -> None:
        def get(name: str) -> Tensor:
            return raw[f"model.layers.{index}.{name}.weight"]

        self.attention_norm = get("input_layernorm")
        self.qkv = torch.cat([get(f"self_attn.{p}_proj") for p in "qkv"])
        self.out = get("self_attn.o_proj")
        self.mlp_norm = get("post_attention_layernorm")
        self.gate_up = torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")])
        self.down = get("mlp.down_proj")
