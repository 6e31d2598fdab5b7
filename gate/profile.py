"""A short measurement of step times: which shape to time next, and the model that the times give.

Reads no clock and runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hybridspec.gate.cost import StepCost, StepTimeModel

# The best of three: the first step of a shape allocates, and other processes only slow steps down.
REPEATS = 3
MOST_TOKENS = 128
"""Verified tokens of a step that is timed, all rows together: more takes too long."""
MOST_LONG_TOKENS = 64
"""The same where contexts are long."""
# Times of fewer shapes do not tell the cost of a step from that of a token.
_LEAST_SHAPES = 3


class Shape(NamedTuple):
    """What is timed: rows, verify width, whether the draft head's forward runs, long contexts."""

    rows: int
    width: int
    model: bool
    long: bool = False


class StepProfile:
    """Times every width without the draft head, and one width with it, at given row counts; and two
    widths with long contexts."""

    def __init__(
        self, rows: Sequence[int], widths: Sequence[int], model_steps: int, long_rows: int = 0
    ) -> None:
        """Plan the shapes, the most telling first.

        Args:
            rows: row counts to time.
            widths: the verify widths, rising.
            model_steps: draft tokens of the draft head; it is timed at the narrowest width that
                holds them all.
            long_rows: rows whose contexts are long; 0: no such steps are timed.
        """
        # Both ends first: a measurement that is cut short has seen the extremes.
        order = dict.fromkeys([widths[0], widths[-1], *widths])
        shapes = [(width, False) for width in order]
        fits = [width for width in widths if width > model_steps]
        if model_steps > 0 and fits:
            shapes.insert(2, (fits[0], True))
        self._extend: dict[Shape, float] = {}
        self._context: dict[Shape, int] = {}
        self._seconds: dict[Shape, list[float]] = {
            Shape(count, width, model): []
            for count in rows
            for width, model in shapes
            if count * width <= MOST_TOKENS
        }
        if long_rows:
            widest = max(width for width in widths if width * long_rows <= MOST_LONG_TOKENS)
            for width in {widths[0], widest}:
                self._seconds[Shape(long_rows, width, model=False, long=True)] = []

    def next(self, rows: int, long: bool = False) -> Shape | None:
        """The shape to run now with ``rows`` rows; None if nothing is left to time there."""
        waiting = [
            (len(times), shape)
            for shape, times in self._seconds.items()
            if (shape.rows, shape.long) == (rows, long) and len(times) < REPEATS
        ]
        return min(waiting, key=lambda entry: entry[0])[1] if waiting else None

    def observe(
        self, shape: Shape, context_tokens: int, seconds: float, extend: float | None = None
    ) -> None:
        """Take in the time of a step of ``shape``, and its draft-extend's where it is known."""
        self._seconds[shape].append(seconds)
        self._context[shape] = context_tokens
        self._extend[shape] = min(extend or math.inf, self._extend.get(shape, math.inf))

    @property
    def times(self) -> dict[Shape, float]:
        """Seconds of each shape that was timed: the least."""
        return {shape: min(times) for shape, times in self._seconds.items() if times}

    def model(self, prior: StepCost) -> StepTimeModel | None:
        """The step-time model that the times give; None if too few shapes were timed.

        Args:
            prior: gives the costs of context and of the draft head where they were not timed, the
                latter relative to its step.
        """
        times = self.times
        if len(times) < _LEAST_SHAPES:
            return None
        found = StepTimeModel(self._fit(times, prior))
        for shape, seconds in times.items():
            extend = self._extend[shape]
            if not shape.model and extend < seconds:
                found.observe_extend(extend / seconds)
            if not shape.long:
                context = self._context[shape]
                found.start(shape.rows, shape.width, context, shape.model, seconds)
        return found

    def _fit(self, times: dict[Shape, float], prior: StepCost) -> StepCost:
        """Least squares on relative errors; no cost is negative."""
        seconds = np.array(list(times.values()))
        facts = np.array(
            [[1.0, shape.rows, shape.rows * shape.width, float(shape.model)] for shape in times]
        )
        context = np.array([float(self._context[shape]) for shape in times])
        width = np.array([float(shape.width) for shape in times])
        timed_context = sum(shape.long for shape in times) > 1
        if timed_context:
            facts = np.column_stack([facts, context, context * width])
        costs, _ = nnls(facts / seconds[:, None], np.ones(len(seconds)))
        base, row, token, head = (float(cost) for cost in costs[:4])
        base = max(base, 0.05 * float(seconds.min()))
        timed_head = any(shape.model for shape in times)
        return StepCost(
            base=base,
            token=token,
            context=float(costs[4]) if timed_context else prior.context,
            model=head if timed_head else prior.model * base / prior.base,
            row=row,
            attention=float(costs[5]) if timed_context else prior.attention,
        )
