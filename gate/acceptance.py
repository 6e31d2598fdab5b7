"""Acceptance learned online: EAGLE3's survival per request, and the cache's where no gate is given.

Counts of tried and accepted positions, smoothed and slowly forgotten. Knows no features or models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Steps after which counts are halved, and the Laplace weight of the prior in observations: vLLM's
# adaptive verification (halving every 1,024 steps); the weights are choices, not measurements.
HALVE_EVERY = 1024
_PRIOR_WEIGHT = 8.0
# A request's own counts forget by this factor a step, so about its last 20 steps speak.
_REQUEST_DECAY = 0.95

_MATCH_EDGES = np.array([2, 3, 4, 6, 8, 12, 16, 24, 32], np.int32)


class ModelAcceptance:
    """EAGLE3's P(step k is accepted | all before were), globally and per request slot.

    A request's rate is its own counts shrunk towards the global rate, so that a new request starts
    at the global curve.
    """

    def __init__(self, capacity: int, steps: int, prior: float = 0.6) -> None:
        """``capacity`` slots, ``steps`` draft tokens; ``prior``: conditional rate before any count.

        0.6 is about what a public EAGLE3 head reaches in chat (2.7 tokens a step including the
        bonus, so a geometric rate of 0.63; see the traces of arXiv 2601.11580).
        """
        self._prior = prior
        self._hits = np.zeros(steps)
        self._tries = np.zeros(steps)
        self._slot_hits = np.zeros((capacity, steps), np.float32)
        self._slot_tries = np.zeros((capacity, steps), np.float32)
        self._position = np.arange(steps, dtype=np.int32)
        self._updates = 0

    def reset(self, slots: NDArray[np.integer]) -> None:
        """Forget the requests of ``slots`` (int ``[rows]``), not the global counts."""
        self._slot_hits[slots] = 0.0
        self._slot_tries[slots] = 0.0

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` slots; the old ones keep their counts."""
        room = ((0, capacity - len(self._slot_hits)), (0, 0))
        self._slot_hits = np.pad(self._slot_hits, room)
        self._slot_tries = np.pad(self._slot_tries, room)

    def observe(
        self,
        slots: NDArray[np.integer],
        proposed: NDArray[np.int32],
        accepted: NDArray[np.int32],
    ) -> None:
        """Count one verified step of the rows that took the model draft (int32 ``[rows]`` each)."""
        if not len(slots):
            return
        hit = self._position < accepted[:, None]
        tried = self._position < np.minimum(accepted + 1, proposed)[:, None]
        self._slot_hits[slots] = self._slot_hits[slots] * _REQUEST_DECAY + hit
        self._slot_tries[slots] = self._slot_tries[slots] * _REQUEST_DECAY + tried
        self._hits += hit.sum(axis=0)
        self._tries += tried.sum(axis=0)
        self._updates += 1
        if self._updates % HALVE_EVERY == 0:
            self._hits *= 0.5
            self._tries *= 0.5

    def survival(self, slots: NDArray[np.integer]) -> NDArray[np.float32]:
        """P(at least k+1 accepted): float32 ``[rows, steps]``, non-increasing."""
        survival: NDArray[np.float32] = np.multiply.accumulate(self.rates(slots), axis=1)
        return survival

    def rates(self, slots: NDArray[np.integer]) -> NDArray[np.float32]:
        """P(token k is accepted | all before were): float32 ``[rows, steps]``."""
        overall = (self._hits + _PRIOR_WEIGHT * self._prior) / (self._tries + _PRIOR_WEIGHT)
        hits = self._slot_hits[slots] + _PRIOR_WEIGHT * overall
        rates: NDArray[np.float32] = (hits / (self._slot_tries[slots] + _PRIOR_WEIGHT)).astype(
            np.float32
        )
        return rates


class CacheAcceptance:
    """The cache's survival without a gate: a table by match length and position.

    As vLLM's adaptive verification does it: Laplace-smoothed counts, halved every 1,024 steps.
    Until a cell has counts, the suffix tree's own path probability stands in.
    """

    def __init__(self, depth: int) -> None:
        """``depth``: positions of a draft, K."""
        self._hits = np.zeros((len(_MATCH_EDGES) + 1, depth))
        self._tries = np.zeros_like(self._hits)
        self._position = np.arange(depth, dtype=np.int32)
        self._updates = 0

    def observe(
        self,
        match_length: NDArray[np.int32],
        proposed: NDArray[np.int32],
        matched: NDArray[np.int32],
        known: NDArray[np.int32],
    ) -> None:
        """Count one step of rows that had a cache draft, verified or not (int32 ``[rows]`` each).

        Args:
            match_length: context tokens matched.
            proposed: draft length.
            matched: how far the draft came true within the step.
            known: tokens that the step produced; the draft's fate beyond them is not counted.
        """
        if not len(matched):
            return
        bucket = np.searchsorted(_MATCH_EDGES, match_length, side="right")
        tried = self._position < np.minimum(np.minimum(matched + 1, proposed), known)[:, None]
        member = (bucket == np.arange(len(self._hits))[:, None]).astype(np.float64)
        self._hits += member @ (self._position < matched[:, None])
        self._tries += member @ tried
        self._updates += 1
        if self._updates % HALVE_EVERY == 0:
            self._hits *= 0.5
            self._tries *= 0.5

    def survival(
        self, match_length: NDArray[np.int32], probs: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """P(at least k+1 accepted): float32 ``[rows, depth]``, non-increasing.

        Args:
            match_length: int32 ``[rows]``.
            probs: float32 ``[rows, >= depth]``, path probabilities padded with 0.
        """
        path = probs[:, : len(self._position)]
        before = np.concatenate([np.ones((len(path), 1), np.float32), path[:, :-1]], axis=1)
        # 0.95: a suffix tree that saw one continuation is never certain of it.
        prior = np.minimum(path / np.maximum(before, 1e-6), 0.95)
        bucket = np.searchsorted(_MATCH_EDGES, match_length, side="right")
        rate = (self._hits[bucket] + _PRIOR_WEIGHT * prior) / (self._tries[bucket] + _PRIOR_WEIGHT)
        return np.cumprod(rate * (path > 0.0), axis=1).astype(np.float32)
