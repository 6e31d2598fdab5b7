"""The seam between drafters, the gate and an engine: what a drafter returns.

This module knows nothing of suffix trees, SGLang or how the gate predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.source import Source


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed continuation of one request, before anything is verified.

    Attributes:
        token_ids: int32 ``[n]``, the proposed tokens in order.
        probs: float32 ``[n]``, probability of the path up to and including each token, as the
            drafter estimates it; non-increasing.
        score: the drafter's own estimate of the accepted length (draft tokens, bonus excluded).
        match_length: context tokens that the draft's source matched.
        shared: whether the draft came from earlier responses rather than the request's own text.
    """

    token_ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    score: float
    match_length: int
    shared: bool

    def __len__(self) -> int:
        return len(self.token_ids)


LENGTH_BINS = ("0", "1", "2", "3", "4-7", "8-15", "16+")
"""Labels of draft lengths in HYBRID's counters; read by whoever reads these."""
EMPTY_DRAFT = Draft(np.empty(0, np.int32), np.empty(0, np.float32), 0.0, 0, False)


__all__ = ["EMPTY_DRAFT", "Draft", "Source"]
