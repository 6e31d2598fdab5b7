"""The alarm for acceptance that jumps to about none or all."""

from __future__ import annotations

import numpy as np

from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang.acceptance_watch import WINDOW, AcceptanceWatch


def window(watch: AcceptanceWatch, source: Source, rate: float) -> list[tuple[Source, str]]:
    """Steps of one row that fill a window at an acceptance rate."""
    jumps = []
    for _ in range(WINDOW // 32):
        row = (np.array([source], np.int8), np.array([32], np.int32))
        jumps += watch.add(*row, np.array([round(32 * rate)], np.int32))
    return jumps


def test_only_jumps_from_a_usual_rate_are_told_once() -> None:
    watch = AcceptanceWatch()
    assert window(watch, Source.CACHE, 0.0) == []  # nothing to compare with
    assert window(watch, Source.CACHE, 0.5) == []
    assert window(watch, Source.CACHE, 1.0) == [(Source.CACHE, "high")]
    assert window(watch, Source.CACHE, 1.0) == []
    assert window(watch, Source.CACHE, 0.5) == []
    assert window(watch, Source.CACHE, 0.0) == [(Source.CACHE, "low")]


def test_sources_are_watched_apart() -> None:
    watch = AcceptanceWatch()
    assert window(watch, Source.MODEL, 0.5) == []
    assert window(watch, Source.CACHE, 0.0) == []
    assert window(watch, Source.MODEL, 0.0) == [(Source.MODEL, "low")]
