"""What the two drafts of a row say about each other, counted online.

EAGLE3 is right more often where the cache is sure, and two drafts that begin with the same token
are both right more often than either expected; of two that begin differently at most one is. How
often both come true at once is what verifying both in one tree is worth. Everything is a ratio of
what came true to what was expected, by relation of the two and by what was expected of the cache
draft. Knows neither features nor models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.acceptance import HALVE_EVERY

# Bins of the expected chance that the cache draft's first token comes true. A choice.
_EDGES = np.array([0.1, 0.25, 0.45, 0.65, 0.85, 0.95], np.float32)
_BINS = len(_EDGES) + 1
MOST_ROWS = 8
"""Rows of a step beyond which two branches are not considered. With 32 and 128 rows they gained 1%
or lost as much in simulation, and with 16 on two CPU cores nothing that could be measured."""
_ALONE, _UNKNOWN, _DIFFER, _AGREE = range(4)
# Observations that the start counts for. A choice.
_WEIGHT = 64.0
# Until counted, by relation: agreeing tokens are better and different ones worse than expected; of
# the chance that the less likely draft comes true, two fifths are shared by both.
_CACHE_START = (1.0, 1.0, 0.6, 1.2)
_MODEL_START = (1.0, 1.0, 0.9, 1.1)
_BOTH_START = 0.4
# Chances stay off 0 and 1: a ratio could otherwise not move them again.
_LEAST, _MOST = np.float32(0.01), np.float32(0.99)


@dataclass(frozen=True, slots=True)
class Joined:
    """Both drafts' expected survival in one step, and what it was before they were compared.

    Attributes:
        survival: float32 ``[rows, K]``, of the cache drafts.
        model_survival: float32 ``[rows, S]``, of EAGLE3's.
        overlap: float32 ``[rows, S]``, P(at least k+1 tokens of both come true), where both are
            long enough.
        cell: int64 ``[rows]``, relation and bin.
        first: float32 ``[rows]``, the cache draft's first token as it was expected.
        model_rates: float32 ``[rows, S]``, EAGLE3's tokens as they were expected, given that all
            before come true.
    """

    survival: NDArray[np.float32]
    model_survival: NDArray[np.float32]
    overlap: NDArray[np.float32]
    cell: NDArray[np.int64]
    first: NDArray[np.float32]
    model_rates: NDArray[np.float32]

    def take(self, rows: NDArray[np.integer]) -> Joined:
        """Copies of the rows that ``rows`` selects."""
        return Joined(*(getattr(self, name)[rows] for name in self.__slots__))


class JointAcceptance:
    """Corrects both survival curves by one another. Not thread-safe."""

    def __init__(self, steps: int) -> None:
        """``steps``: tokens of EAGLE3's draft, S > 0."""
        self._position = np.arange(steps, dtype=np.int32)
        # Of every cell: the cache draft's first token, EAGLE3's tokens, tokens of both.
        start = [
            [cache, *[model] * steps, *[_BOTH_START] * steps]
            for cache, model in zip(_CACHE_START, _MODEL_START, strict=True)
            for _ in range(_BINS)
        ]
        self._ratio = np.array(start, np.float32)
        columns = self._ratio.shape[1]
        self._counts = np.full((len(start), 2 * columns), _WEIGHT, np.float32)
        self._hits, self._expected = self._counts[:, :columns], self._counts[:, columns:]
        self._hits *= self._ratio
        self._cells = np.arange(len(start))[:, None]
        self._updates = 0

    def join(
        self,
        tokens: NDArray[np.int32],
        length: NDArray[np.int32],
        survival: NDArray[np.float32],
        model_rates: NDArray[np.float32],
        foretold: NDArray[np.integer] | None = None,
    ) -> Joined:
        """Compare the drafts of one step.

        Args:
            tokens: int32 ``[rows, >= 1]``, cache drafts.
            length: int32 ``[rows]``, their lengths.
            survival: float32 ``[rows, K >= 1]``, what is expected of them.
            model_rates: float32 ``[rows, S]``, and of each token of EAGLE3's, given that all before
                come true.
            foretold: int ``[rows]``, EAGLE3's first tokens, where they are known by now.
        """
        steps = len(self._position)
        drafted = length > 0
        first = np.where(drafted, survival[:, 0], np.float32(0.0))
        relation = drafted.astype(np.int64)
        if foretold is not None:
            relation += drafted * (1 + (tokens[:, 0] == foretold))
        cell = relation * _BINS + np.searchsorted(_EDGES, first, side="right")
        ratio = self._ratio.take(cell, axis=0)
        corrected = model_rates * ratio[:, 1 : steps + 1]
        corrected = np.minimum(np.maximum(corrected, _LEAST, out=corrected), _MOST, out=corrected)
        if foretold is not None:
            # Drafts that cannot be compared say nothing of the cache's: the gate's curve stays.
            chance = np.minimum(first * ratio[:, 0], _MOST)
            survival = survival * (chance / np.maximum(first, _LEAST))[:, None]
            np.minimum(survival, _MOST, out=survival)
            agree = relation == _AGREE
            # The same token: the same event, whoever names it.
            corrected[:, 0] = np.where(agree, chance, corrected[:, 0])
        model_survival = np.multiply.accumulate(corrected, axis=1)
        overlap = ratio[:, steps + 1 :]
        overlap *= self._both(survival, model_survival)
        if foretold is not None:
            overlap[relation == _DIFFER] = 0.0
            overlap[:, 0] = np.where(agree, model_survival[:, 0], overlap[:, 0])
        return Joined(survival, model_survival, overlap, cell, first, model_rates)

    def observe(
        self,
        joined: Joined,
        rows: NDArray[np.integer],
        *,
        matched: NDArray[np.int32],
        cache_tried: NDArray[np.int32],
        model_hits: NDArray[np.int32],
        model_tried: NDArray[np.int32],
    ) -> None:
        """Take in a finished step of the rows ``rows`` of ``joined``; all other arrays are of
        these, ``[rows]``.

        Args:
            joined: what :meth:`join` said before the step.
            rows: int, ascending, which of its rows.
            matched: how much of the cache draft came true.
            cache_tried: its tokens that were verified.
            model_hits: how much of EAGLE3's draft came true.
            model_tried: its tokens that were verified, or judged otherwise.
        """
        position, steps, of = self._position, len(self._position), joined
        if len(rows) < len(of.first):
            of = joined.take(rows)
        both = np.minimum(cache_tried, model_tried)
        both_hits = np.minimum(both, np.minimum(matched, model_hits))
        columns = self._ratio.shape[1]
        seen = np.empty((len(rows), 2 * columns), np.float32)
        hits, expected = seen[:, :columns], seen[:, columns:]
        hits[:, 0] = matched > 0
        hits[:, 1 : steps + 1] = position < model_hits[:, None]
        hits[:, steps + 1 :] = position < both_hits[:, None]
        expected[:, 0] = of.first
        tried = position < np.minimum(model_hits + 1, model_tried)[:, None]
        np.multiply(of.model_rates, tried, out=expected[:, 1 : steps + 1])
        shared = self._both(of.survival, of.model_survival)
        np.multiply(shared, position < both[:, None], out=expected[:, steps + 1 :])
        self._counts += (of.cell == self._cells).astype(np.float32) @ seen
        self._updates += 1
        if self._updates % HALVE_EVERY == 0:
            self._counts *= np.float32(0.5)
        # More came true of both than of the less likely one alone: chance, or another cause.
        np.divide(self._hits, self._expected, out=self._ratio)
        np.minimum(self._ratio[:, steps + 1 :], 1.0, out=self._ratio[:, steps + 1 :])

    def _both(
        self, survival: NDArray[np.float32], model_survival: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The less likely of the two at each of EAGLE3's positions: float32 ``[rows, S]``."""
        steps = len(self._position)
        if survival.shape[1] < steps:
            survival = np.pad(survival, ((0, 0), (0, steps - survival.shape[1])))
        less: NDArray[np.float32] = np.minimum(survival[:, :steps], model_survival)
        return less
