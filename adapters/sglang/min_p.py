"""min-p for verified drafts, which SGLang 0.5.23 ignores under speculation on every platform.

SGLang's verification hands the target's distribution, after temperature, top-k and top-p, to one
sampling function; on its way there we drop what min-p drops. Rows without min-p stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_running: Tensor | None = None
"""min-p of the batch that is being verified, float ``[rows]``; None if no request asks for it."""


@contextmanager
def during(sampling_info: Any) -> Iterator[None]:
    """The batch with this ``SamplingBatchInfo`` is verified inside."""
    global _running
    _running = sampling_info.min_ps if sampling_info.need_min_p_sampling else None
    try:
        yield
    finally:
        _running = None


def verify(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND hook on ``eagle_utils.tree_speculative_sampling_target_only``."""
    if _running is not None and "target_probs" in kwargs:
        kwargs["target_probs"] = keep_likely(kwargs["target_probs"], _running)
    return original(*args, **kwargs)


def keep_likely(probs: Tensor, min_ps: Tensor) -> Tensor:
    """Drop tokens less likely than ``min_p`` times the likeliest, and renormalise.

    Args:
        probs: float ``[rows, width, vocab]``.
        min_ps: float ``[rows]``; 0 keeps all.

    Returns:
        As ``probs``; each distribution sums to one.
    """
    floor = probs.amax(dim=-1, keepdim=True) * min_ps.view(-1, 1, 1)
    kept = torch.where(probs < floor, 0.0, probs)
    return kept / kept.sum(dim=-1, keepdim=True)
