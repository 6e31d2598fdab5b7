"""A decode step that was planned, until the next one is: what was known, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.sglang.requests import Followed
from hybridspec.adapters.sglang.step_plan import StepPlan
from hybridspec.adapters.sglang.step_times import RanStep
from hybridspec.gate.joint import Joined
from hybridspec.gate.observations import Observations
from hybridspec.gate.step_outcome import StepOutcome


@dataclass(slots=True)
class PendingStep:
    """One planned step; ``outcome`` is None until it is known.

    Attributes:
        rows: the requests, in row order.
        slots: int64 ``[rows]``, their slots.
        plan: what is carried out.
        observations: what was known of each row.
        context_tokens: tokens in the KV cache of all rows together.
        foretold: int64 ``[rows]``, EAGLE3's first tokens, where they were known.
        number: of the step in the server's life.
        catches_up: whether a draft-extend that was put off is done in it.
        expected: float64 ``[rows]``, accepted tokens as they were expected.
        joined: both drafts compared, where rows may have both.
    """

    rows: list[Followed]
    slots: NDArray[np.int64]
    plan: StepPlan
    observations: Observations
    context_tokens: int
    foretold: NDArray[np.int64] | None
    number: int
    catches_up: bool
    expected: NDArray[np.float64]
    joined: Joined | None = None
    outcome: StepOutcome | None = None

    def as_ran(self) -> RanStep:
        """Its shape, for step times."""
        plan = self.plan
        return RanStep(
            rows=len(self.rows),
            width=plan.width,
            context_tokens=self.context_tokens,
            model_forward=plan.model_forward,
            extend=plan.extend,
            catches_up=self.catches_up,
        )
