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
        extend: what becomes of this step's draft-extend.
    """

    width: int
    source: NDArray[np.int8]
    length: NDArray[np.int32]
    tokens: NDArray[np.int32]
    model_length: int
    model_forward: bool
    extend: Extend = Extend.NOW
