"""arctic-inference's Python binding: one call a tree and row, under the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from arctic_inference.suffix_decoding.cache import SuffixTree
from numpy.typing import NDArray

from hybridspec.adapters.base import Drafts
from hybridspec.adapters.suffix.trees import Growth, Limits, LookUp


class _LibraryTree:
    def __init__(self, depth: int) -> None:
        self.native = SuffixTree(depth)

    def extend(self, sequence: int, tokens: NDArray[np.int32]) -> None:
        self.native.extend_ndarray(sequence, tokens)

    def remove(self, sequence: int) -> None:
        self.native.remove(sequence)


class LibraryTrees:
    """Suffix trees without a compiler."""

    name = "library"

    def tree(self, depth: int) -> _LibraryTree:
        return _LibraryTree(depth)

    def grow(self, rows: Sequence[Growth]) -> None:
        for own, shared, sequence, context, count in rows:
            fresh = context.tail(count)
            own.extend(0, fresh)
            shared.extend(sequence, fresh)

    def draft(self, rows: Sequence[LookUp], into: Drafts, most: int, limits: Limits) -> None:
        for row, (own, _, shared, _, context) in enumerate(rows):
            tail = context.tail(limits.depth)
            asked = (tail, most, limits.factor, 0.0, limits.least_probability, False)
            assert isinstance(own, _LibraryTree)
            best, from_shared = own.native.speculate_ndarray(*asked), False
            if shared is not None:
                assert isinstance(shared, _LibraryTree)
                other = shared.native.speculate_ndarray(*asked)
                if other.score > best.score:
                    best, from_shared = other, True
            found = best.score > 0.0
            count = len(best.token_ids) if found else 0
            into.tokens[row, :count] = best.token_ids[:count]
            into.tokens[row, count:] = -1
            into.probs[row, :count] = best.probs[:count]
            into.probs[row, count:] = 0.0
            into.length[row] = count
            into.score[row] = best.score if found else 0.0
            into.match_length[row] = best.match_len if found else 0
            into.shared[row] = from_shared and found
