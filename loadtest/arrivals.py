"""Gaps between the arrivals of an open-loop load."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

# Of a mean gap of one: every gap the same; anything up to twice; memoryless.
ARRIVALS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda rng: 1.0,
    "uniform": lambda rng: rng.uniform(0.0, 2.0),
    "poisson": lambda rng: rng.expovariate(1.0),
}


def gaps(kind: str, rate: float, seed: int) -> Iterator[float]:
    """Endless gaps in seconds, on average ``1 / rate``.

    Args:
        kind: a key of :data:`ARRIVALS`.
        rate: arrivals a second, above 0.
        seed: the same seed gives the same gaps.
    """
    rng, draw = random.Random(seed), ARRIVALS[kind]
    while True:
        yield draw(rng) / rate
