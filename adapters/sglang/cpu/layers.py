"""SGLang's unquantised linear layers and language-model head over packed weights.

Hooks only: the arithmetic is in :mod:`.linear`. Layers that are not covered (LoRA heads, quantised
weights, fp32 heads, weights beyond the budget) run SGLang's own code.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import psutil
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

from hybridspec.adapters.sglang.cpu import linear

logger = logging.getLogger(__name__)

# Copies may take this share of the memory that is free when the first weight is packed; SGLang
# sizes its KV pool after that, from what is left.
_MEMORY_SHARE = 0.25

_METHOD = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod"
_LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_UPDATES = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)


def register() -> None:
    """Register the hooks; SGLang applies them after all plugins have run."""
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
