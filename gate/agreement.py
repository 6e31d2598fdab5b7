"""What EAGLE3's next token says about the cache draft, and the cache draft about it.

EAGLE3's draft-extend has predicted the next token before anything is verified. Where the cache
draft begins with the same token, two sources that know nothing of each other agree, and both are
right more often than either would be; where they differ, at most one is. By how much is counted
online: the ratio of first tokens that came true to those that were expected to. Knows neither
features nor models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Bins of the expected chance that the cache draft's first token comes true.
_EDGES = np.array([0.2, 0.4, 0.6, 0.8, 0.95], np.float32)
_BINS = len(_EDGES) + 1
# Observations that the start counts for, and steps after which counts are halved. Choices.
_WEIGHT = 8.0
_HALVE_EVERY = 1024
# Chances stay off 0 and 1: a ratio could otherwise not move them again.
_LEAST, _MOST = 0.01, 0.99
_NO_DRAFT, _DIFFER, _AGREE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Said:
    """One step's first tokens, before it is verified. All ``[rows]``.

    Attributes:
        relation: int64, whether there is no cache draft, the two differ, or they agree.
        bin: int64, of the cache draft's expected chance.
        cache: float32, expected chance of the cache draft's first token.
        model: float32, of EAGLE3's.
    """

    relation: NDArray[np.int64]
    bin: NDArray[np.int64]
    cache: NDArray[np.float32]
    model: NDArray[np.float32]

    def take(self, index: NDArray[np.integer]) -> Said:
        """Copies of the rows that ``index`` selects."""
        return Said(self.relation[index], self.bin[index], self.cache[index], self.model[index])


class Agreement:
    """Corrects both sources' survival by whether they begin alike. Not thread-safe."""

    def __init__(self) -> None:
        shape = (3, _BINS)
        # Until counted: agreeing halves the doubt about a draft, differing halves the hope.
        self._cache = _Ratios(shape, np.array([1.0, 0.5, 1.2]))
        self._model = _Ratios(shape, np.array([1.0, 0.8, 1.2]))

    def said(
        self,
        foretold: NDArray[np.integer],
        tokens: NDArray[np.int32],
        length: NDArray[np.int32],
        survival: NDArray[np.float32],
        model_survival: NDArray[np.float32],
    ) -> Said:
        """Compare the first tokens.

        Args:
            foretold: int ``[rows]``, EAGLE3's next tokens.
            tokens: int32 ``[rows, >= 1]``, cache drafts.
            length: int32 ``[rows]``, their lengths.
            survival: float32 ``[rows, >= 1]``, what is expected of them.
            model_survival: float32 ``[rows, >= 1]``, and of EAGLE3's drafts.
        """
        alike = (tokens[:, 0] == foretold).astype(np.int64)
        relation = np.where(length > 0, _DIFFER + alike, _NO_DRAFT)
        cache = np.where(length > 0, survival[:, 0], 0.0).astype(np.float32)
        bins = np.searchsorted(_EDGES, cache, side="right")
        return Said(relation, bins, cache, model_survival[:, 0].copy())

    def correct(
        self,
        said: Said,
        survival: NDArray[np.float32],
        model_survival: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Both curves, ``[rows, K]`` and ``[rows, S]``, given what the first tokens are.

        What follows a first token, given that it came true, is left as expected.
        """
        cache = self._cache.of(said, said.cache)
        # The same token: the same event, whoever names it.
        model = np.where(said.relation == _AGREE, cache, self._model.of(said, said.model))
        return _scaled(survival, said.cache, cache), _scaled(model_survival, said.model, model)

    def observe(
        self, said: Said, cache_hit: NDArray[np.bool_], model_hit: NDArray[np.bool_]
    ) -> None:
        """Take in which first tokens came true; bool ``[rows]`` each."""
        self._cache.add(said, said.cache, cache_hit)
        self._model.add(said, said.model, model_hit)


class _Ratios:
    """Came true over expected, by relation and bin."""

    def __init__(self, shape: tuple[int, int], start: NDArray[np.float64]) -> None:
        self._hits = np.repeat(start[:, None], shape[1], axis=1) * _WEIGHT / 2
        self._expected = np.full(shape, _WEIGHT / 2)
        self._updates = 0

    def of(self, said: Said, expected: NDArray[np.float32]) -> NDArray[np.float32]:
        """Corrected chances ``[rows]``."""
        ratio = self._hits[said.relation, said.bin] / self._expected[said.relation, said.bin]
        chance: NDArray[np.float32] = np.clip(expected * ratio, _LEAST, _MOST).astype(np.float32)
        return chance

    def add(self, said: Said, expected: NDArray[np.float32], hit: NDArray[np.bool_]) -> None:
        np.add.at(self._hits, (said.relation, said.bin), hit)
        np.add.at(self._expected, (said.relation, said.bin), expected)
        self._updates += 1
        if self._updates % _HALVE_EVERY == 0:
            self._hits *= 0.5
            self._expected *= 0.5


def _scaled(
    curve: NDArray[np.float32], first: NDArray[np.float32], to: NDArray[np.float32]
) -> NDArray[np.float32]:
    factor = to / np.maximum(first, np.float32(_LEAST))
    return np.minimum(curve * factor[:, None], np.float32(1.0))
