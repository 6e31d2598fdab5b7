"""Who answers which prompts when, where servers take turns. Starts and measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def rotate(names: Sequence[str], by: int) -> list[str]:
    """The names in a cycle, begun ``by`` places later."""
    return [names[(by + index) % len(names)] for index in range(len(names))]


def pick(prompts: Sequence[T], round_: int, size: int) -> list[T]:
    """The prompts of one round: the next ``size``, beginning again where they run out."""
    return [prompts[(round_ * size + index) % len(prompts)] for index in range(size)]


def schedule(
    cells: Sequence[T], algorithms: Sequence[str], round_: int, *, by_algorithm: bool
) -> Iterator[tuple[T, str]]:
    """Pairs of cell (a workload, say) and algorithm in the order of one round.

    Algorithms follow each other on the same prompts; ``by_algorithm`` lets each do all its cells at
    once instead, where changing turns means starting a server.
    """
    if by_algorithm:
        for name in rotate(algorithms, round_):
            yield from ((cell, name) for cell in cells)
        return
    for index, cell in enumerate(cells):
        for name in rotate(algorithms, round_ + index):
            yield cell, name
