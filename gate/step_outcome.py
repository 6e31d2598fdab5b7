"""What came of one decode step's drafts, once verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.source import Source


class Proposed(Protocol):
    """What is read of a decision or of the plan that carries it out; see
    :class:`hybridspec.gate.base.Decision`."""

    @property
    def source(self) -> NDArray[np.int8]: ...
    @property
    def length(self) -> NDArray[np.int32]: ...
    @property
    def branch(self) -> NDArray[np.int32] | None: ...


@dataclass(frozen=True, slots=True)
class Beside:
    """The shorter branches of a step: their rows, whose drafts they are, and their tokens; arrays
    ``[rows with two branches]``, int64, int8 and int32."""

    rows: NDArray[np.int64]
    source: NDArray[np.int8]
    proposed: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Of every row; the bonus token is not counted.

    Attributes:
        accepted: int32 ``[rows]``, accepted draft tokens.
        source: int8 ``[rows]``, whose draft they are of; that of a row with two branches is the
            longer one's.
        proposed: int32 ``[rows]``, tokens of that draft.
        model_tried: int32 ``[rows]``, tokens of EAGLE3's draft that were verified.
        model_hits: int32 ``[rows]``, those of them that came true.
        beside: the other branches; None if no row had two.
    """

    accepted: NDArray[np.int32]
    source: NDArray[np.int8]
    proposed: NDArray[np.int32]
    model_tried: NDArray[np.int32]
    model_hits: NDArray[np.int32]
    beside: Beside | None = None


def outcome(
    plan: Proposed, accepted: NDArray[np.int32], branches: NDArray[np.int32] | None
) -> StepOutcome:
    """Say whose the accepted tokens are.

    Args:
        plan: of the step: what every row proposed.
        accepted: int32 ``[rows]``.
        branches: of a plan with branches, int ``[2, rows]``: whether EAGLE3's was accepted, and
            how many tokens of EAGLE3's draft came true, in whichever branch.
    """
    model = plan.source == Source.MODEL
    tried, hits = np.where(model, plan.length, 0), np.where(model, accepted, 0)
    source, proposed, beside = plan.source, plan.length, None
    if plan.branch is not None and branches is not None:
        two, won = plan.branch > 0, branches[0] > 0
        tried, hits = np.where(two, plan.branch, tried), np.where(two, branches[1], hits)
        other = np.where(won, Source.CACHE, Source.MODEL).astype(np.int8)
        rest = np.where(won, plan.length, plan.branch)
        beside = Beside(np.flatnonzero(two), other[two], rest[two])
        source = np.where(won, np.int8(Source.MODEL), source)
        proposed = np.where(won, plan.branch, proposed)
    return StepOutcome(
        accepted, source, proposed, tried.astype(np.int32), hits.astype(np.int32), beside
    )
