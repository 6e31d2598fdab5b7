"""The ``goodput`` policy: expected tokens per second of the whole batch.

The draft head's forward is paid by every row as soon as one row wants it, and a wide verify by all
rows as soon as one draft is long; so width and forward are chosen for the batch, then each row
takes its better source within them, or both side by side. Exact for the predictions it is given.
Knows neither where they come from nor how time is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.base import Decision, StepTime, StepView
from hybridspec.gate.source import Source

_ARMS = 3
# What a draft head that rests saves of its draft-extend. It catches up with 16 steps at once, which
# took 16.6 ms where 16 single ones took 6.6 ms each (16 rows, SmolLM2-135M, two CPU cores).
_RESTING = 0.84
TREE = 0.05
"""Expected tokens that a second branch must add to a row's better draft alone: a tree costs more
than a chain, and of many rows some seem worth one by chance."""


@dataclass(frozen=True, slots=True)
class _Splits:
    """Every width between 1 to S tokens of EAGLE3's draft and the cache draft, ``[S, 1, widths]``:
    the tokens of each, and what a second branch must be worth."""

    branch: NDArray[np.int32]
    room: NDArray[np.int32]
    price: NDArray[np.float64]

    @classmethod
    def of(cls, rooms: NDArray[np.int32], steps: int) -> _Splits:
        branch = np.arange(1, steps + 1, dtype=np.int32)[:, None, None]
        room = rooms - branch
        price = np.where(room > 0, TREE, np.inf)
        return cls(branch, np.maximum(room, 0), price)


class Goodput:
    """Maximise expected tokens / predicted seconds over ladder widths, with and without EAGLE3."""

    name = "goodput"
    uses_model = True

    def __init__(self, ladder: Sequence[int], cost: StepTime) -> None:
        """Choose among ``ladder`` (ascending widths from 1) by the times that ``cost`` predicts."""
        self._widths = [int(width) for width in ladder]
        # Every width three times: the draft head rests, gives the token that it has predicted
        # already, or runs its forward.
        self._rooms = np.array(self._widths * _ARMS, np.int32) - 1
        self._model_rooms: dict[tuple[int, int], NDArray[np.int32]] = {}
        self._splits: dict[int, _Splits] = {}
        self._cost = cost

    def decide(self, view: StepView) -> Decision:
        """The best decision; ties go to the narrower width and to the less busy draft head."""
        steps = view.model_steps
        lengths = (0, min(view.model_free, steps), steps)
        cache_total = _running_total(cache_survival(view))
        model_total = _running_total(view.model_survival)
        fits = np.minimum(view.cache_length, cache_total.shape[1] - 1)[:, None]
        cache = _at(cache_total, np.minimum(self._rooms, fits))
        rooms = self._model_room(lengths[1], steps)
        model = model_total.take(rooms, axis=1)
        gain, both = np.maximum(cache, model), None
        if view.overlap is not None and steps:
            both = self._both_gain(view.overlap, fits, cache_total, model_total)
            for arm in (1, 2):
                if lengths[arm]:
                    part = gain[:, arm * len(self._widths) : (arm + 1) * len(self._widths)]
                    for branch in range(lengths[arm]):
                        np.maximum(part, both[branch], out=part)
        tokens = np.add.reduce(gain, axis=0) + view.rows
        # A draft head that has nothing more to say is not run for it.
        arms = tokens / self._seconds(view, forward=steps > lengths[1])
        index = int(arms.argmax())
        arm, place = divmod(index, len(self._widths))
        width = self._widths[place]
        decision = _decision(view, width, cache[:, index], model[:, index], lengths[arm])
        if both is None or not lengths[arm]:
            return decision
        better = both[: lengths[arm], :, place]
        merged = better.max(axis=0) > np.maximum(cache[:, index], model[:, index])
        if not merged.any():
            return decision
        return _merged(decision, view, merged, better.argmax(axis=0).astype(np.int32) + 1)

    def _model_room(self, free: int, steps: int) -> NDArray[np.int32]:
        """Tokens of EAGLE3's draft that fit into each arm: int32 ``[3 * widths]``."""
        found = self._model_rooms.get((free, steps))
        if found is None:
            ahead = np.repeat(np.array((0, free, steps), np.int32), len(self._widths))
            found = self._model_rooms[free, steps] = np.minimum(self._rooms, ahead)
        return found

    def _both_gain(
        self,
        overlap: NDArray[np.float32],
        fits: NDArray[np.int32],
        cache_total: NDArray[np.float64],
        model_total: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Expected accepted tokens ``[S, rows, widths]`` of both drafts side by side: 1 to S tokens
        of EAGLE3's, and of the cache draft what fits beside them. Hopeless where nothing does."""
        steps = overlap.shape[1]
        splits = self._splits.get(steps)
        if splits is None:
            splits = self._splits[steps] = _Splits.of(self._rooms[: len(self._widths)], steps)
        cache = np.minimum(splits.room, fits)
        gain = _at(cache_total, cache)
        gain -= _at(_running_total(overlap), np.minimum(cache, splits.branch))
        gain += model_total[:, 1:].T[:, :, None]
        gain -= splits.price
        return gain

    def _seconds(self, view: StepView, forward: bool) -> list[float]:
        """Of every arm; those with the draft head's forward take for ever if it is no choice."""
        predict, rows, context = self._cost.predict, view.rows, view.context_tokens
        plain = [predict(rows, width, context, False) for width in self._widths]
        resting = 1.0 - _RESTING * self._cost.extend_share
        rests = [seconds * resting for seconds in plain]
        if not forward:
            return rests + plain + [math.inf] * len(plain)
        return rests + plain + [predict(rows, width, context, True) for width in self._widths]


def _decision(
    view: StepView,
    width: int,
    cache: NDArray[np.float64],
    model: NDArray[np.float64],
    model_length: int,
) -> Decision:
    """The better source of every row within ``width``; ``[rows]`` expected tokens of each."""
    limit = width - 1
    use_model = model > cache
    drafted = np.minimum(view.cache_length, limit) * (cache > 0.0)
    length = np.where(use_model, np.int32(min(model_length, limit)), drafted)
    source = np.where(use_model, np.int8(Source.MODEL), drafted > 0)
    return Decision(width, source, length)


def _merged(
    decision: Decision, view: StepView, merged: NDArray[np.bool_], beside: NDArray[np.int32]
) -> Decision:
    """The decision with both drafts side by side in the rows of ``merged``, ``beside`` tokens of
    them EAGLE3's."""
    room = np.minimum(view.cache_length, np.int32(decision.width - 1) - beside)
    return Decision(
        decision.width,
        np.where(merged, np.int8(Source.CACHE), decision.source),
        np.where(merged, room, decision.length),
        np.where(merged, beside, np.int32(0)),
    )


def _at(total: NDArray[np.float64], columns: NDArray[np.int32]) -> NDArray[np.float64]:
    """``total[row, columns[..., row, :]]`` of every row; ``columns``: ``[..., rows, any]``."""
    starts = np.arange(0, total.size, total.shape[1], dtype=np.int32)[:, None]
    found: NDArray[np.float64] = total.take(columns + starts)
    return found


def _running_total(survival: NDArray[np.float32]) -> NDArray[np.float64]:
    """Expected accepted length of a draft's first 0, 1, ... tokens: ``[rows, depth + 1]``."""
    total = np.zeros((survival.shape[0], survival.shape[1] + 1))
    np.add.accumulate(survival, axis=1, out=total[:, 1:])
    return total


def cache_survival(view: StepView) -> NDArray[np.float32]:
    """The cache drafts' survival ``[rows, K]``, or the score spread over its first tokens."""
    if view.survival is not None:
        return view.survival
    depth = int(view.cache_length.max(initial=0))
    return np.clip(view.cache_score[:, None] - np.arange(depth, dtype=np.float32), 0.0, 1.0)


def predicted_length(view: StepView) -> NDArray[np.float32]:
    """Expected accepted length ``[rows]`` of each row's cache draft, bonus excluded."""
    survival = cache_survival(view)
    inside = np.arange(survival.shape[1]) < view.cache_length[:, None]
    expected: NDArray[np.float32] = (survival * inside).sum(axis=1, dtype=np.float32)
    return expected


def expected_length(view: StepView, decision: Decision) -> NDArray[np.float64]:
    """Expected accepted tokens ``[rows]`` of what ``decision`` verifies, bonus excluded."""
    rows = np.arange(view.rows)
    cache = _running_total(cache_survival(view))
    expected: NDArray[np.float64] = cache[rows, np.minimum(decision.length, cache.shape[1] - 1)]
    if view.model_steps:
        model = _running_total(view.model_survival)
        of_model = model[rows, np.minimum(decision.length, view.model_steps)]
        expected = np.where(decision.source == Source.MODEL, of_model, expected)
        if decision.branch is not None and view.overlap is not None:
            shared = np.minimum(decision.branch, decision.length)
            expected += model[rows, decision.branch] - _running_total(view.overlap)[rows, shared]
    expected[decision.source == Source.NONE] = 0.0
    return expected
