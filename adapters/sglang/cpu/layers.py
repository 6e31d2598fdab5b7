"""SGLang's linear layers, language-model head and rotary embedding over this package's kernels.

Hooks only: the arithmetic is in :mod:`.linear` and :mod:`.rotary`. What is not covered runs
SGLang's own code: LoRA heads, quantised weights, fp32 heads, weights beyond the budget, partial or
interleaved rotary embeddings.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import psutil
from sglang.srt.model_executor import forward_context
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

from hybridspec.adapters.sglang.cpu import linear, rotary

logger = logging.getLogger(__name__)

# Copies may take this share of the memory that is free when the first weight is packed; SGLang
# sizes its KV pool after that, from what is left.
_MEMORY_SHARE = 0.25

_METHOD = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod"
_LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor"
_ROTARY = "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_UPDATES = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)


def register() -> None:
    """Register the hooks; SGLang applies them after all plugins have run."""
    HookRegistry.register(f"{_ROTARY}.forward_native", _rotary, HookType.AROUND)
    if not linear.supported():
        return
    HookRegistry.register(f"{_METHOD}.process_weights_after_loading", _loaded, HookType.AFTER)
    HookRegistry.register(f"{_METHOD}.apply", _apply, HookType.AROUND)
    HookRegistry.register(f"{_LOGITS}._compute_lm_head", _compute_lm_head, HookType.AROUND)
    for name in _UPDATES:
        HookRegistry.register(f"{_UPDATER}.{name}", _update, HookType.AROUND)


@functools.cache
def weights() -> linear.PackedWeights:
    """This process's packed weights."""
    return linear.PackedWeights(int(psutil.virtual_memory().available * _MEMORY_SHARE))


def _loaded(result: None, method: Any, layer: Any) -> None:
    store = weights()
    refused = store.refused
    store.get(layer, layer.weight)
    if store.refused > refused == 0:
        logger.info(
            "Packed weights reach their budget of %.1f GB: further layers use PyTorch's linear.",
            store.budget / 1e9,
        )


def _apply(
    original: Callable[..., Tensor], method: Any, layer: Any, x: Tensor, bias: Tensor | None = None
) -> Tensor:
    weight = layer.weight
    if x.dtype is weight.dtype and x.dim() == 2:
        packed = weights().get(layer, weight)
        if packed is not None:
            return linear.product(x, packed, bias)
    return original(method, layer, x, bias)


def _compute_lm_head(
    original: Callable[..., Tensor],
    processor: Any,
    hidden_states: Tensor,
    lm_head: Any,
    embedding_bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    if _plain_head(processor, lm_head, hidden_states):
        packed = weights().get(lm_head, lm_head.weight)
        if packed is not None:
            return linear.product(hidden_states, packed, None)
    return original(processor, hidden_states, lm_head, embedding_bias, out=out)


def _plain_head(processor: Any, lm_head: Any, hidden_states: Tensor) -> bool:
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    return (
        not hasattr(lm_head, "apply_lora")
        and not processor.use_fp32_lm_head
        and processor.rl_on_policy_target is None
        and not should_apply_lm_head_quant_method(lm_head, getattr(lm_head, "quant_method", None))
        and lm_head.weight.dtype is hidden_states.dtype
        and hidden_states.dim() == 2
    )


def _update(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Weights change in place: copies made before are stale, whether or not it succeeds."""
    try:
        return original(*args, **kwargs)
    finally:
        weights().clear()


_angles = rotary.Angles()


def _rotary(
    original: Callable[..., tuple[Tensor, Tensor]],
    rope: Any,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    offsets: Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> tuple[Tensor, Tensor]:
    common = (
        rope.is_neox_style
        and rope.rotary_dim == rope.head_size
        and offsets is None
        and fused_set_kv_buffer_arg is None
        and query.dim() == key.dim() == 2
        and positions.dim() == 1
        and not hasattr(rope, "sin_cos_cache")
    )
    if not common:
        return original(rope, positions, query, key, offsets, fused_set_kv_buffer_arg)
    # SGLang makes a new context object for every forward.
    forward = forward_context._current
    return rotary.rotate(
        query, key, *_angles.get(forward, rope.cos_sin_cache, positions, query.dtype)
    )
