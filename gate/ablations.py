"""The ``goodput`` policy with one idea taken out, to see what the idea is worth. For simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hybridspec.gate.base import Decision, StepTime, StepView
from hybridspec.gate.goodput import Goodput, predicted_length


class AlwaysWide:
    """Without the arm that verifies nothing: every step is at least as wide as the second rung."""

    name = "always_wide"
    uses_model = True

    def __init__(self, ladder: Sequence[int], cost: StepTime) -> None:
        self._goodput = Goodput(ladder[1:], cost)

    def decide(self, view: StepView) -> Decision:
        """The best decision among the wider rungs."""
        return self._goodput.decide(view)


class RowByRow:
    """Without the choice for the whole batch: each row decides as if it were served alone, and the
    batch runs as wide as its widest row."""

    name = "row_by_row"
    uses_model = True

    def __init__(self, ladder: Sequence[int], cost: StepTime) -> None:
        self._goodput = Goodput(ladder, cost)

    def decide(self, view: StepView) -> Decision:
        """All rows' own decisions, put together."""
        alone = [self._goodput.decide(_row(view, row)) for row in range(view.rows)]
        return Decision(
            max(decision.width for decision in alone),
            np.concatenate([decision.source for decision in alone]),
            np.concatenate([decision.length for decision in alone]),
        )


class MeanOnly:
    """Without the survival curve: the expected accepted length is taken to be certain, the tokens
    after it hopeless."""

    name = "mean_only"
    uses_model = True

    def __init__(self, ladder: Sequence[int], cost: StepTime) -> None:
        self._goodput = Goodput(ladder, cost)

    def decide(self, view: StepView) -> Decision:
        """Goodput's decision for curves that are steps at their means."""
        if view.survival is None:
            return self._goodput.decide(view)
        depth = np.arange(view.survival.shape[1], dtype=np.float32)
        certain = np.clip(predicted_length(view)[:, None] - depth, 0.0, 1.0)
        return self._goodput.decide(replace(view, survival=certain.astype(np.float32)))


def _row(view: StepView, row: int) -> StepView:
    part = slice(row, row + 1)
    return replace(
        view,
        cache_length=view.cache_length[part],
        cache_score=view.cache_score[part],
        survival=None if view.survival is None else view.survival[part],
        model_survival=view.model_survival[part],
        context_tokens=view.context_tokens // view.rows,
    )
