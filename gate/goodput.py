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
        self._widths = np.array(ladder, np.int32)
        self._cost = cost

    def decide(self, view: StepView) -> Decision:
        """The best decision; ties go to the narrower width and to no draft-head forward."""
        cache = self._gain(cache_survival(view), view.cache_length)
        # Without the draft head's forward only the tokens that it has predicted already are there.
        free = view.model_survival[:, : view.model_free]
        arms = [(False, free, self._gain(free, None))]
        if view.model_steps > view.model_free:
            arms.append((True, view.model_survival, self._gain(view.model_survival, None)))
        best: tuple[float, Decision] | None = None
        for forward, survival, model in arms:
            tokens = view.rows + np.maximum(cache, model).sum(axis=0)
            rate, index = self._best(view, tokens, forward)
            if best is None or rate > best[0]:
                best = rate, self._decision(view, index, cache, model, survival.shape[1])
        assert best is not None
        return best[1]

    def _gain(
        self, survival: NDArray[np.float32], length: NDArray[np.int32] | None
    ) -> NDArray[np.float64]:
        """Expected accepted draft tokens ``[rows, widths]`` of drafts cut to each width."""
        rows, depth = survival.shape
        total = np.zeros((rows, depth + 1))
        np.cumsum(survival, axis=1, out=total[:, 1:])
        fits = np.minimum(self._widths - 1, depth)[None, :]
        if length is not None:
            fits = np.minimum(fits, length[:, None])
        gain: NDArray[np.float64] = total[np.arange(rows)[:, None], fits]
        return gain

    def _best(self, view: StepView, tokens: NDArray[np.float64], model: bool) -> tuple[float, int]:
        """(tokens per second, index of the width) of the best width."""
        seconds = [
            self._cost.predict(view.rows, int(width), view.context_tokens, model)
            for width in self._widths
        ]
        rate = tokens / np.array(seconds)
        index = int(rate.argmax())
        return float(rate[index]), index

    def _decision(
        self,
        view: StepView,
        index: int,
        cache: NDArray[np.float64],
        model: NDArray[np.float64],
        model_length: int,
    ) -> Decision:
        limit = int(self._widths[index]) - 1
        use_cache = cache[:, index] > 0.0
        source = np.where(use_cache, Source.CACHE, Source.NONE).astype(np.int8)
        length = np.where(use_cache, np.minimum(view.cache_length, limit), 0).astype(np.int32)
        use_model = model[:, index] > cache[:, index]
        source[use_model] = Source.MODEL
        length[use_model] = min(model_length, limit)
        return Decision(limit + 1, source, length)


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
