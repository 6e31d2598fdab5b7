"""A short measurement of step times: which shape to time next, and the model that the times give.

A shape is (rows, width, whether the draft head's forward runs). Reads no clock and runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hybridspec.gate.cost import StepCost, StepTimeModel

Shape = tuple[int, int, bool]

# The best of three: the first step of a shape allocates, and other processes only slow steps down.
REPEATS = 3
MOST_TOKENS = 256
"""Verified tokens of a step that is timed, all rows together: more takes too long."""
# Times of fewer shapes do not tell the cost of a step from that of a token.
_LEAST_SHAPES = 3


class StepProfile:
    """Times every width without the draft head, and one width with it, at given row counts."""

    def __init__(self, rows: Sequence[int], widths: Sequence[int], model_steps: int) -> None:
        """Plan the shapes, the most telling first.

        Args:
            rows: row counts to time.
            widths: the verify widths, rising.
            model_steps: draft tokens of the draft head; it is timed at the narrowest width that
                holds them all.
        """
        # Both ends first: a measurement that is cut short has seen the extremes.
        order = dict.fromkeys([widths[0], widths[-1], *widths])
        shapes = [(width, False) for width in order]
        fits = [width for width in widths if width > model_steps]
        if model_steps > 0 and fits:
            shapes.insert(2, (fits[0], True))
        self._extend: dict[Shape, float] = {}
        self._seconds: dict[Shape, list[float]] = {
            (count, width, model): []
            for count in rows
            for width, model in shapes
            if count * width <= MOST_TOKENS
        }

    def next(self, rows: int) -> Shape | None:
        """The shape to run now with ``rows`` rows; None if nothing is left to time there."""
        waiting = [
            (len(times), shape)
            for shape, times in self._seconds.items()
            if shape[0] == rows and len(times) < REPEATS
        ]
        return min(waiting, key=lambda entry: entry[0])[1] if waiting else None

    def observe(self, shape: Shape, seconds: float, extend: float | None = None) -> None:
        """Take in the time of a step of ``shape``, and its draft-extend's where it is known."""
        self._seconds[shape].append(seconds)
        self._extend[shape] = min(extend or math.inf, self._extend.get(shape, math.inf))

    @property
    def times(self) -> dict[Shape, float]:
        """Seconds of each shape that was timed: the least."""
        return {shape: min(times) for shape, times in self._seconds.items() if times}

    def model(self, prior: StepCost) -> StepTimeModel | None:
        """The step-time model that the times give; None if too few shapes were timed.

        Args:
            prior: gives the cost of context, which is not varied here, and the draft head's if it
                was not timed, relative to its step.
        """
        times = self.times
        if len(times) < _LEAST_SHAPES:
            return None
        found = StepTimeModel(_fit(times, prior))
        for shape, seconds in times.items():
            rows, width, model = shape
            extend = self._extend[shape]
            for _ in range(REPEATS):  # its weight against the overall ratio
                found.observe(rows, width, 0, model, seconds, extend if extend < seconds else None)
        return found


def _fit(times: dict[Shape, float], prior: StepCost) -> StepCost:
    """Least squares on relative errors; no cost is negative."""
    seconds = np.array(list(times.values()))
    facts = np.array([[1.0, rows, rows * width, float(model)] for rows, width, model in times])
    (base, row, token, head), *_ = np.linalg.lstsq(
        facts / seconds[:, None], np.ones(len(seconds)), rcond=None
    )
    token, row = max(float(token), 0.0), max(float(row), 0.0)
    base = max(float(base), 0.05 * float(seconds.min()))
    timed_head = any(model for _, _, model in times)
    head = max(float(head), 0.0) if timed_head else prior.model * base / prior.base
    return StepCost(base=base, token=token, context=prior.context, model=head, row=row)
