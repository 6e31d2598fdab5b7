"""Rolling facts of each request, updated once a step from what verification has settled.

The same code runs in the server and in replay. Leakage is excluded by construction: an update sees
the draft of the step that just ended and the tokens that this step produced, never later ones. How
far an unverified draft would have gone beyond these tokens is not known then and is not used.
This module knows nothing of features, models or engines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HISTORY_COLUMNS = (
    "first_hit",  # did the last cache draft's first token come true (0 or 1; 0.5 = no draft yet)
    "first_hit_rate",  # running mean of it
    "matched",  # tokens of the last cache draft that came true within its step
    "running_match",  # tokens in a row, over steps, that cache drafts foretold
    "cache_accepted",  # accepted length of the last verified cache draft
    "cache_accepted_mean",  # running mean of it
    "model_accepted_mean",  # the same for model drafts
    "last_accepted",  # accepted draft tokens of the last step, whatever its source
    "cache_rate",  # running share of steps that verified a cache draft
)

_FIRST_HIT, _HIT_RATE, _MATCHED, _RUNNING, _CACHE, _CACHE_MEAN, _MODEL_MEAN, _LAST, _RATE = range(9)
_CACHE_SOURCE, _MODEL_SOURCE = 1, 2  # values of Source

# A running mean forgets over about five steps: short enough to follow a switch between copying and
# free text within one answer. A choice, not a measurement.
_WEIGHT = np.float32(0.2)
_START = np.zeros(len(HISTORY_COLUMNS), np.float32)
_START[[_FIRST_HIT, _HIT_RATE]] = 0.5


def pad(tokens: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ragged rows as one array, int32 ``[rows, width >= 1]`` padded with -1, and int32 ``[rows]``
    tokens of each."""
    count = np.array([len(row) for row in tokens], np.int32)
    padded = np.full((len(tokens), max(int(count.max(initial=0)), 1)), -1, np.int32)
    for index, row in enumerate(tokens):
        padded[index, : len(row)] = row
    return padded, count


def agreement(
    draft: NDArray[np.int32],
    draft_length: NDArray[np.int32],
    tokens: NDArray[np.int32],
    count: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Length of the common prefix of each row's draft and tokens.

    Args:
        draft: int32 ``[rows, depth]``; only the first ``draft_length[row]`` count.
        draft_length: int32 ``[rows]``.
        tokens: int32 ``[rows, width]``; only the first ``count[row]`` count.
        count: int32 ``[rows]``.

    Returns:
        int32 ``[rows]``.
    """
    width = min(draft.shape[1], tokens.shape[1])
    equal = np.empty((len(draft), width + 1), np.bool_)
    np.equal(draft[:, :width], tokens[:, :width], out=equal[:, :width])
    equal[:, width] = False
    first_miss = equal.argmin(axis=1).astype(np.int32)
    shortest: NDArray[np.int32] = np.minimum(np.minimum(draft_length, count), first_miss)
    return shortest


class RequestHistory:
    """float32 ``[capacity, len(HISTORY_COLUMNS)]``, one row per slot that the caller assigns."""

    def __init__(self, capacity: int) -> None:
        self._values: NDArray[np.float32] = np.tile(_START, (capacity, 1))

    def reset(self, slots: NDArray[np.integer]) -> None:
        """Forget ``slots`` (int ``[rows]``): their next request starts fresh."""
        self._values[slots] = _START

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` slots; the old ones keep their values."""
        fresh = np.tile(_START, (capacity - len(self._values), 1))
        self._values = np.concatenate([self._values, fresh])

    def read(self, slots: NDArray[np.integer]) -> NDArray[np.float32]:
        """Copies of the rows of ``slots``: float32 ``[rows, len(HISTORY_COLUMNS)]``."""
        rows: NDArray[np.float32] = self._values[slots]
        return rows

    def update(
        self,
        slots: NDArray[np.integer],
        draft: NDArray[np.int32],
        draft_length: NDArray[np.int32],
        tokens: NDArray[np.int32],
        count: NDArray[np.int32],
        source: NDArray[np.int8],
        accepted: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """Take in one finished step; mutates ``slots``, each named at most once.

        Args:
            slots: int ``[rows]``.
            draft: int32 ``[rows, depth]``, cache draft issued at the step's start, verified or not.
            draft_length: int32 ``[rows]``, 0 where there was none.
            tokens: int32 ``[rows, width]``, tokens that the step produced, bonus included.
            count: int32 ``[rows]``, how many of them.
            source: int8 ``[rows]``, what was verified (values of ``Source``).
            accepted: int32 ``[rows]``, accepted draft tokens, bonus excluded.

        Returns:
            int32 ``[rows]``: how far the cache draft came true within this step. A lower bound of
            its accepted length where it equals ``count``; exact where it is smaller.
        """
        matched = agreement(draft, draft_length, tokens, count)
        old = self._values[slots]
        new = old.copy()
        drafted = draft_length > 0
        hit = matched > 0
        new[:, _FIRST_HIT] = np.where(drafted, hit, old[:, _FIRST_HIT])
        _blend(new, _HIT_RATE, hit, drafted)
        new[:, _MATCHED] = np.where(drafted, matched, old[:, _MATCHED])
        new[:, _RUNNING] = np.where(matched == count, old[:, _RUNNING] + matched, 0)
        from_cache = source == _CACHE_SOURCE
        new[:, _CACHE] = np.where(from_cache, accepted, old[:, _CACHE])
        _blend(new, _CACHE_MEAN, accepted, from_cache)
        _blend(new, _MODEL_MEAN, accepted, source == _MODEL_SOURCE)
        new[:, _LAST] = accepted
        new[:, _RATE] += _WEIGHT * (from_cache - new[:, _RATE])
        self._values[slots] = new
        return matched


def _blend(
    values: NDArray[np.float32],
    column: int,
    sample: NDArray[np.integer] | NDArray[np.bool_],
    where: NDArray[np.bool_],
) -> None:
    """Move a running mean towards ``sample`` on the rows of ``where``, in place."""
    values[:, column] += _WEIGHT * where * (sample - values[:, column])
