"""A growable token array. Knows nothing of trees or requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TokenIds = Sequence[int] | NDArray[np.integer]


def as_int32(tokens: TokenIds) -> NDArray[np.int32]:
    """Contiguous one-dimensional int32 array of ``tokens``, copied only when needed.

    Raises:
        ValueError: more than one dimension.
        OverflowError: a Python int that int32 cannot hold.
    """
    array = np.ascontiguousarray(tokens, dtype=np.int32)
    if array.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, got shape {array.shape}")
    return array


class TokenBuffer:
    """Append-only int32 tokens in one array that doubles when full, so appending is amortised."""

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        # Room for a typical answer at once; one copy per doubling after that.
        self._data = np.empty(max(256, 2 * len(tokens)), np.int32)
        self._data[: len(tokens)] = tokens
        self._address = self._data.ctypes.data
        self._length = len(tokens)

    def __len__(self) -> int:
        return self._length

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Append ``tokens`` (int32 ``[n]``)."""
        end = self._length + len(tokens)
        if end > len(self._data):
            grown = np.empty(2 * end, np.int32)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
            self._address = grown.ctypes.data
        self._data[self._length : end] = tokens
        self._length = end

    def tail(self, count: int) -> NDArray[np.int32]:
        """View of the last ``count`` tokens (or all, if fewer); valid until the next append."""
        return self._data[max(0, self._length - count) : self._length]

    def place(self, count: int) -> tuple[int, int]:
        """Address and number of what :meth:`tail` views, for compiled code."""
        start = max(0, self._length - count)
        return self._address + start * self._data.itemsize, self._length - start

    def view(self) -> NDArray[np.int32]:
        """View of all tokens; valid until the next append."""
        return self._data[: self._length]
