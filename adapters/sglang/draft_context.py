"""Where the draft head's forwards, and the building of what they need, have to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.layers.moe.utils import (
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)
from sglang.srt.speculative.spec_utils import draft_tp_context


@contextmanager
def drafting(draft_worker: Any) -> Iterator[None]:
    """The parallel layout and expert backends of ``draft_worker``, SGLang's EAGLE3 draft worker."""
    with (
        draft_tp_context(draft_worker.parallel_layout),
        speculative_moe_backend_context(),
        speculative_moe_a2a_backend_context(),
    ):
        yield
