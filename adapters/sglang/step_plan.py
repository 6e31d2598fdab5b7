"""What one decode step carries out: the seam between whoever decides and the worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.sglang.deferral import Extend


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the worker carries out in one step.

    Attributes:
        width: tokens verified per row, the root (bonus) token included.
        source: int8 ``[rows]``, values of :class:`Source`.
        length: int32 ``[rows]``, draft tokens proposed, at most ``width - 1``.
        tokens: int32 ``[rows, width - 1]``, cache drafts; zero elsewhere.
        model_length: longest EAGLE3 draft that any row takes; 0 if none does.
        model_forward: whether EAGLE3's draft forward must run.
        branch: int32 ``[rows]``, tokens of EAGLE3's draft that are verified beside a cache draft;
            None if there are none.
        extend: what becomes of this step's draft-extend.
    """

    width: int
    source: NDArray[np.int8]
    length: NDArray[np.int32]
    tokens: NDArray[np.int32]
    model_length: int
    model_forward: bool
    branch: NDArray[np.int32] | None = None
    extend: Extend = Extend.NOW
