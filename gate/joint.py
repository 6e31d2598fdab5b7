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

# Bins of the expected chance that the cache draft's first token comes true. A choice.
_EDGES = np.array([0.1, 0.25, 0.45, 0.65, 0.85, 0.95], np.float32)
_BINS = len(_EDGES) + 1
_ALONE, _UNKNOWN, _DIFFER, _AGREE = range(4)
# Observations that the start counts for, and steps after which counts are halved. Choices.
_WEIGHT = 64.0
_HALVE_EVERY = 1024
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
        hazards: float32 ``[rows, S]``, EAGLE3's, given that all before came true.
    """

    survival: NDArray[np.float32]
    model_survival: NDArray[np.float32]
    overlap: NDArray[np.float32]
    cell: NDArray[np.int64]
    first: NDArray[np.float32]
    hazards: NDArray[np.float32]


class JointAcceptance:
    """Corrects both survival curves by one another. Not thread-safe."""

    def __init__(self, steps: int) -> None:
        """``steps``: tokens of EAGLE3's draft, S > 0."""
        self._cache = _Ratios(_CACHE_START, 1)
        self._model = _Ratios(_MODEL_START, steps)
        self._both = _Ratios((_BOTH_START,) * 4, steps)
        self._position = np.arange(steps, dtype=np.int32)

    def join(
        self,
        tokens: NDArray[np.int32],
        length: NDArray[np.int32],
        survival: NDArray[np.float32],
        model_survival: NDArray[np.float32],
        foretold: NDArray[np.integer] | None = None,
    ) -> Joined:
        """Compare the drafts of one step.

        Args:
            tokens: int32 ``[rows, >= 1]``, cache drafts.
            length: int32 ``[rows]``, their lengths.
            survival: float32 ``[rows, K >= 1]``, what is expected of them.
            model_survival: float32 ``[rows, S]``, and of EAGLE3's drafts.
            foretold: int ``[rows]``, EAGLE3's first tokens, where they are known by now.
        """
        relation = np.where(length > 0, _UNKNOWN, _ALONE)
        if foretold is not None:
            relation += (length > 0) * (1 + (tokens[:, 0] == foretold))
        first = np.where(length > 0, survival[:, 0], np.float32(0.0))
        cell = relation * _BINS + np.searchsorted(_EDGES, first, side="right")
        hazards = model_survival.copy()
        hazards[:, 1:] /= np.maximum(model_survival[:, :-1], _LEAST)
        chance = np.clip(first * self._cache.of(cell)[:, 0], _LEAST, _MOST)
        corrected = np.clip(hazards * self._model.of(cell), _LEAST, _MOST)
        agree = relation == _AGREE
        corrected[agree, 0] = chance[agree]  # the same token: the same event, whoever names it
        survival = survival * (chance / np.maximum(first, _LEAST))[:, None]
        np.minimum(survival, _MOST, out=survival)
        model_survival = np.multiply.accumulate(corrected, axis=1)
        overlap = np.zeros_like(model_survival)
        shared = min(survival.shape[1], overlap.shape[1])
        np.minimum(survival[:, :shared], model_survival[:, :shared], out=overlap[:, :shared])
        overlap *= np.minimum(self._both.of(cell), np.float32(1.0))
        overlap[relation == _DIFFER] = 0.0
        overlap[agree, 0] = chance[agree]
        return Joined(survival, model_survival, overlap, cell, first, hazards)

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
            rows: int, which of its rows.
            matched: how much of the cache draft came true.
            cache_tried: its tokens that were verified.
            model_hits: how much of EAGLE3's draft came true.
            model_tried: its tokens that were verified, or judged otherwise.
        """
        cell = joined.cell[rows]
        self._cache.add(cell, matched[:, None] > 0, joined.first[rows, None])
        hit = self._position < model_hits[:, None]
        tried = self._position < np.minimum(model_hits + 1, model_tried)[:, None]
        self._model.add(cell, hit, joined.hazards[rows] * tried)
        both = np.minimum(cache_tried, model_tried)
        hit = self._position < np.minimum(both, np.minimum(matched, model_hits))[:, None]
        self._both.add(cell, hit, self._expected_both(joined, rows, both))

    def _expected_both(
        self, joined: Joined, rows: NDArray[np.integer], both: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        expected = np.zeros((len(rows), len(self._position)), np.float32)
        shared = min(joined.survival.shape[1], expected.shape[1])
        np.minimum(
            joined.survival[rows, :shared],
            joined.model_survival[rows, :shared],
            out=expected[:, :shared],
        )
        expected *= self._position < both[:, None]
        return expected


class _Ratios:
    """Came true over expected, by cell and position."""

    def __init__(self, start: tuple[float, ...], positions: int) -> None:
        self._expected = np.full((len(start) * _BINS, positions), _WEIGHT)
        self._hits = self._expected * np.repeat(np.array(start), _BINS)[:, None]
        self._ratio = (self._hits / self._expected).astype(np.float32)
        self._updates = 0

    def of(self, cell: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 ``[rows, positions]``."""
        found: NDArray[np.float32] = self._ratio.take(cell, axis=0)
        return found

    def add(
        self, cell: NDArray[np.int64], hit: NDArray[np.bool_], expected: NDArray[np.float32]
    ) -> None:
        np.add.at(self._hits, cell, hit)
        np.add.at(self._expected, cell, expected)
        self._updates += 1
        if self._updates % _HALVE_EVERY == 0:
            self._hits *= 0.5
            self._expected *= 0.5
        np.divide(self._hits, self._expected, out=self._ratio, casting="same_kind")
