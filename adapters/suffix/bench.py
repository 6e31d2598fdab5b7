"""How long the cache drafts of a decode step take, by row count and by the way trees are had."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.suffix.cache import SuffixCache
from hybridspec.adapters.suffix.trees import Trees
from hybridspec.gate.observations import Observations

_PROMPT = 300
_ACCEPTED = 3
_PHRASES, _LONGEST_PHRASE = 400, 60
_VOCABULARY = 30_000
_UNCOUNTED = 20


def time_drafts(
    trees: Trees,
    rows: Sequence[int] = (1, 8, 32, 64),
    *,
    cached_tokens: int = 100_000,
    depth: int = 64,
    most: int = 32,
    steps: int = 150,
) -> list[dict[str, float]]:
    """Microseconds of extending trees by three tokens a row and looking every row up.

    The text is made of phrases that come again and of free tokens between them, half and half.

    Args:
        trees: how trees are had.
        rows: requests that run at once.
        cached_tokens: tokens of earlier responses.
        depth: of the trees.
        most: most tokens of a draft.
        steps: timed steps of each row count, after some that are not counted.

    Returns:
        Of each row count: ``rows``, the medians ``extend`` and ``look_up``, ``p50`` and ``p99`` of
        both together, and ``drafted``, the share of rows that found a draft.
    """
    rng = np.random.default_rng(0)
    phrases = [_tokens(rng, int(rng.integers(4, _LONGEST_PHRASE))) for _ in range(_PHRASES)]
    cache = SuffixCache(max_depth=depth, trees=trees)
    for number in range(cached_tokens // _PROMPT):
        cache.start(f"old{number}", _tokens(rng, 1))
        cache.extend(f"old{number}", _text(rng, phrases, _PROMPT))
        cache.finish(f"old{number}")
    return [_time(cache, rng, phrases, count, most, steps) for count in rows]


def _time(
    cache: SuffixCache,
    rng: np.random.Generator,
    phrases: list[NDArray[np.int32]],
    rows: int,
    most: int,
    steps: int,
) -> dict[str, float]:
    steps += _UNCOUNTED
    rids = [f"row{row}" for row in range(rows)]
    for rid in rids:
        cache.start(rid, _text(rng, phrases, _PROMPT))
    outputs = [_text(rng, phrases, steps * _ACCEPTED) for _ in rids]
    drafts = Observations.allocate(rows, most)
    times = np.empty((steps, 2))
    drafted = 0
    for step in range(steps):
        fresh = [output[step * _ACCEPTED : (step + 1) * _ACCEPTED] for output in outputs]
        began = time.perf_counter()
        cache.extend_all(rids, fresh)
        extended = time.perf_counter()
        cache.draft(rids, drafts, most)
        times[step] = extended - began, time.perf_counter() - extended
        drafted += int((drafts.length > 0).sum())
    for rid in rids:
        cache.discard(rid)
    micro = times[_UNCOUNTED:] * 1e6
    p50, p99 = np.percentile(micro.sum(axis=1), (50, 99))
    extend, look_up = np.median(micro, axis=0)
    return {
        "rows": rows,
        "p50": float(p50),
        "p99": float(p99),
        "extend": float(extend),
        "look_up": float(look_up),
        "drafted": drafted / (steps * rows),
    }


def _text(
    rng: np.random.Generator, phrases: list[NDArray[np.int32]], length: int
) -> NDArray[np.int32]:
    parts: list[NDArray[np.int32]] = []
    while sum(map(len, parts)) < length:
        # Popular phrases come more often, as in real text.
        phrase = phrases[int(len(phrases) * rng.random() ** 2)]
        parts += [phrase, _tokens(rng, len(phrase))]
    return np.concatenate(parts)[:length]


def _tokens(rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Free tokens, the small ids far more frequent."""
    return (rng.random(count) ** 4 * _VOCABULARY).astype(np.int32)
