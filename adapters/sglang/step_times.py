"""Tells the step-time model how long the worker's steps took, and what of that is a step's own.

Reads no clock: the worker says when a step started and ended. Where wall times are not true (a GPU
that runs ahead of the host) nothing is learned.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridspec.adapters.sglang.deferral import Extend
from hybridspec.adapters.sglang.metrics import HybridMetrics
from hybridspec.gate.cost import StepTimeModel

LONGEST_IDLE = 0.5
"""Seconds. A gap between two steps longer than this is idling, not step overhead."""


@dataclass(frozen=True, slots=True)
class RanStep:
    """A step as the step-time model sees it.

    Attributes:
        rows: running requests.
        width: verified tokens per row, the root token included.
        context_tokens: KV tokens of all rows together.
        model_forward: whether EAGLE3's draft forward ran.
        extend: what became of its draft-extend.
        catches_up: whether that draft-extend did those of earlier steps too.
    """

    rows: int
    width: int
    context_tokens: int
    model_forward: bool
    extend: Extend
    catches_up: bool


class StepTimes:
    """Wall times of steps, from one's end to the next one's. Not thread-safe."""

    def __init__(self, cost: StepTimeModel, metrics: HybridMetrics, *, rests: bool) -> None:
        """``rests``: whether draft-extends are ever put off, so that their times are told apart."""
        self._cost, self._metrics, self._rests = cost, metrics, rests
        self._ended = 0.0
        self._interrupted = False

    def interrupted(self) -> None:
        """Something else ran (a prefill): the gap before the next step is not its overhead, and
        that step is slower than others."""
        self._ended = 0.0
        self._interrupted = True

    def took(self, started: float, ended: float) -> float:
        """Seconds that the step which ran from ``started`` to ``ended`` took."""
        # The scheduler's own work between steps is paid once a step, so it counts; a pause does
        # not.
        gap = started - self._ended
        began = self._ended if 0.0 < gap < LONGEST_IDLE and self._ended else started
        self._ended = ended
        return ended - began

    def learn(self, step: RanStep, seconds: float, extend: float) -> None:
        """Take in a step's time, and the seconds of it that its draft-extend took."""
        interrupted, self._interrupted = self._interrupted, False
        if interrupted:
            return
        alone: float | None = extend
        if not self._rests:
            alone = None
        elif step.catches_up or step.extend is not Extend.NOW:
            seconds, alone = seconds - extend, 0.0  # what is put off is no part of this step
        shape = (step.rows, step.width, step.context_tokens, step.model_forward)
        self._metrics.step_time(step.width, seconds, self._cost.predict(*shape))
        self._cost.observe(*shape, seconds, alone)
