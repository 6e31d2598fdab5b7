"""The seam between drafters, the gate and an engine: where a drafter writes.

This module knows nothing of suffix trees, SGLang or how the gate predicts.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.source import Source


class Drafts(Protocol):
    """Proposed continuations of several requests, one row each, before anything is verified.

    Arrays are C-contiguous and written in place (see :class:`hybridspec.gate.observations.
    Observations`, which has them).

    Attributes:
        tokens: int32 ``[rows, depth]``, the proposed tokens in order, padded with -1.
        probs: float32 ``[rows, depth]``, probability of the path up to and including each token,
            as the drafter estimates it; non-increasing, padded with 0.
        length: int32 ``[rows]``, proposed tokens; 0 where there is no draft.
        score: float32 ``[rows]``, the drafter's own estimate of the accepted length (draft tokens,
            bonus excluded).
        match_length: int32 ``[rows]``, context tokens that the draft's source matched.
        shared: bool ``[rows]``, whether the draft came from earlier responses rather than the
            request's own text.
    """

    @property
    def tokens(self) -> NDArray[np.int32]: ...
    @property
    def probs(self) -> NDArray[np.float32]: ...
    @property
    def length(self) -> NDArray[np.int32]: ...
    @property
    def score(self) -> NDArray[np.float32]: ...
    @property
    def match_length(self) -> NDArray[np.int32]: ...
    @property
    def shared(self) -> NDArray[np.bool_]: ...


LENGTH_BINS = ("0", "1", "2", "3", "4-7", "8-15", "16+")
"""Labels of draft lengths in HYBRID's counters; read by whoever reads these."""


__all__ = ["LENGTH_BINS", "Drafts", "Source"]
