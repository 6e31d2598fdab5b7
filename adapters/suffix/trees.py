"""What a suffix tree and a way to look many rows up are. Knows neither requests nor budgets.

Two ways give the same drafts: arctic-inference's Python binding, row by row (``library.py``), and
the compiled front over the library's own sources (``front.py``), where this machine can have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.base import Drafts
from hybridspec.adapters.suffix.tokens import TokenBuffer


class Tree(Protocol):
    """One suffix tree over numbered sequences."""

    def extend(self, sequence: int, tokens: NDArray[np.int32]) -> None:
        """Append ``tokens`` (int32 ``[n]``, n > 0, contiguous) to a sequence."""
        ...

    def remove(self, sequence: int) -> None:
        """Forget a sequence."""
        ...


class Growth(NamedTuple):
    """One row: the newest ``number`` tokens of ``context`` go to the end of sequence 0 of its own
    tree and of ``sequence`` of the shared one."""

    own: Tree
    shared: Tree
    sequence: int
    context: TokenBuffer
    number: int


class LookUp(NamedTuple):
    """One row: the trees to ask and the context whose end is to be continued.

    The sequences are those in the two trees that end as the context does, -1 where none does; they
    spare the search.
    """

    own: Tree
    own_sequence: int
    shared: Tree | None
    shared_sequence: int
    context: TokenBuffer


@dataclass(frozen=True, slots=True)
class Limits:
    """How long drafts may be: see :class:`hybridspec.adapters.suffix.SuffixCache`."""

    depth: int
    factor: float
    least_probability: float


class Trees(Protocol):
    """A way to have trees."""

    @property
    def name(self) -> str: ...

    def tree(self, depth: int) -> Tree:
        """An empty tree of this many levels."""
        ...

    def grow(self, rows: Sequence[Growth]) -> None:
        """Extend the trees of all rows."""
        ...

    def draft(self, rows: Sequence[LookUp], into: Drafts, most: int, limits: Limits) -> None:
        """Write each row's better-scored draft of at most ``most`` tokens; ties go to ``own``."""
        ...
