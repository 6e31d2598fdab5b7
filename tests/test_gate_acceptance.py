"""Online acceptance: EAGLE3's per request, and the cache's table."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridspec.gate.acceptance import CacheAcceptance, ModelAcceptance


def full(value: int, rows: int) -> NDArray[np.int32]:
    return np.full(rows, value, np.int32)


def test_model_survival_starts_at_the_prior() -> None:
    acceptance = ModelAcceptance(4, 3, prior=0.5)
    expected = [[0.5, 0.25, 0.125]]
    np.testing.assert_allclose(acceptance.survival(np.array([2])), expected, rtol=1e-6)


def test_model_survival_shrinks_towards_all_requests() -> None:
    acceptance = ModelAcceptance(8, 3)
    good, bad, fresh = np.array([0, 1]), np.array([2, 3]), np.array([4])
    for _ in range(300):
        acceptance.observe(good, full(3, 2), full(3, 2))
        acceptance.observe(bad, full(3, 2), full(0, 2))
    high = acceptance.survival(good)[0]
    low = acceptance.survival(bad)[0]
    new = acceptance.survival(fresh)[0]
    assert high[0] > 0.85
    assert low[0] < 0.2
    assert new[0] == pytest.approx(0.5, abs=0.02)
    assert (np.diff(high) <= 0).all()
    acceptance.reset(good)
    assert acceptance.survival(good)[0, 0] == pytest.approx(float(new[0]))


def test_positions_after_a_rejection_are_not_counted() -> None:
    acceptance = ModelAcceptance(1, 3)
    slot = np.array([0])
    for _ in range(500):
        acceptance.observe(slot, full(3, 1), full(1, 1))
    first, second, third = acceptance.survival(slot)[0]
    assert first > 0.95
    assert second < 0.05
    assert third == pytest.approx(second * 0.6, rel=0.01)  # never tried: still the prior
    acceptance.observe(slot[:0], full(3, 0), full(1, 0))


def test_counts_are_halved() -> None:
    acceptance = ModelAcceptance(1, 1)
    slot = np.array([0])
    for _ in range(3000):
        acceptance.observe(slot, full(1, 1), full(1, 1))
    for _ in range(2000):
        acceptance.observe(slot, full(1, 1), full(0, 1))
    acceptance.reset(slot)
    assert acceptance.survival(slot)[0, 0] < 0.4  # 0.6 if nothing were forgotten


def probs(rows: int, length: int, depth: int) -> NDArray[np.float32]:
    path = np.zeros((rows, depth), np.float32)
    path[:, :length] = 1.0
    return path


def test_cache_table_learns_by_match_length() -> None:
    table = CacheAcceptance(8)
    short, long = full(1, 4), full(20, 4)
    start = table.survival(short, probs(4, 5, 16))
    assert start[0, 0] == pytest.approx(0.95)
    assert (start[:, 5:] == 0).all()
    for _ in range(200):
        table.observe(short, full(5, 4), full(0, 4), full(1, 4))
        table.observe(long, full(5, 4), full(5, 4), full(6, 4))
    assert table.survival(short, probs(4, 5, 8))[0, 0] < 0.05
    assert table.survival(long, probs(4, 5, 8))[0, 4] > 0.9
    table.observe(short[:0], short[:0], short[:0], short[:0])


def test_cache_table_does_not_count_what_it_could_not_see() -> None:
    table = CacheAcceptance(8)
    match = full(4, 1)
    for _ in range(300):  # plain steps: the first token came true, the rest stays unknown
        table.observe(match, full(8, 1), full(1, 1), full(1, 1))
    survival = table.survival(match, probs(1, 8, 8))[0]
    assert survival[0] > 0.98
    assert survival[1] == pytest.approx(float(survival[0]) * 0.95, rel=1e-3)
