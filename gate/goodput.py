"""The ``goodput`` policy: expected tokens per second of the whole batch.

The draft head's forward is paid by every row as soon as one row wants it, and a wide verify by all
rows as soon as one draft is long; so width and forward are chosen for the batch, then each row
takes its better source within them. Exact for the predictions it is given. Knows neither where
they come from nor how time is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.base import Decision, StepTime, StepView
from hybridspec.gate.source import Source


class Goodput:
    """Maximise expected tokens / predicted seconds over ladder widths, with and without EAGLE3."""

    name = "goodput"

    def __init__(self, ladder: Sequence[int], cost: StepTime) -> None:
        """Choose among ``ladder`` (ascending widths from 1) by the times that ``cost`` predicts."""
        self._widths = [int(width) for width in ladder]
        self._rooms = np.array(ladder, np.int32) - 1
        self._cost = cost

    def decide(self, view: StepView) -> Decision:
        """The best decision; ties go to the narrower width and to no draft-head forward."""
        cache = self._cache_gain(view)
        model_total = _running_total(view.model_survival)
        # Without the draft head's forward only the tokens that it has predicted already are there.
        arms = [(False, min(view.model_free, view.model_steps))]
        if view.model_steps > view.model_free:
            arms.append((True, view.model_steps))
        best_rate, best = -1.0, None
        for forward, length in arms:
            model = model_total.take(np.minimum(self._rooms, length), axis=1)
            tokens = np.add.reduce(np.maximum(cache, model), axis=0) + view.rows
            rate = tokens / self._seconds(view, forward)
            index = int(rate.argmax())
            if rate[index] > best_rate:
                best_rate, best = float(rate[index]), (index, length, model)
        assert best is not None
        index, length, model = best
        return self._decision(view, index, cache[:, index], model[:, index], length)

    def _cache_gain(self, view: StepView) -> NDArray[np.float64]:
        """Expected accepted tokens ``[rows, widths]`` of the cache drafts, cut to each width."""
        total = _running_total(cache_survival(view))
        rows, columns = total.shape
        fits = np.minimum(self._rooms, np.minimum(view.cache_length, columns - 1)[:, None])
        fits += np.arange(0, rows * columns, columns, dtype=np.int32)[:, None]
        gain: NDArray[np.float64] = total.take(fits)
        return gain

    def _seconds(self, view: StepView, forward: bool) -> NDArray[np.float64]:
        predict, rows, context = self._cost.predict, view.rows, view.context_tokens
        return np.array([predict(rows, width, context, forward) for width in self._widths])

    def _decision(
        self,
        view: StepView,
        index: int,
        cache: NDArray[np.float64],
        model: NDArray[np.float64],
        model_length: int,
    ) -> Decision:
        limit = self._widths[index] - 1
        use_model = model > cache
        use_cache = (cache > 0.0) & ~use_model
        length = np.minimum(view.cache_length, limit) * use_cache
        length += use_model * np.int32(min(model_length, limit))
        source = use_cache * np.int8(Source.CACHE) + use_model * np.int8(Source.MODEL)
        return Decision(limit + 1, source, length)


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
