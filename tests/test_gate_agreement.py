"""Two sources that begin alike, or do not: what is counted and what it changes."""

from __future__ import annotations

import numpy as np
import pytest

from hybridspec.gate.agreement import Agreement

CACHE = np.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.0, 0.0, 0.0]], np.float32)
MODEL = np.array([[0.6, 0.3], [0.6, 0.3], [0.6, 0.3]], np.float32)
TOKENS = np.array([[7, 8, 9], [7, 8, 9], [-1, -1, -1]], np.int32)
LENGTH = np.array([3, 3, 0], np.int32)
FORETOLD = np.array([7, 5, 5])  # alike, different, and no cache draft


def judge(agreement: Agreement) -> tuple[np.ndarray, np.ndarray]:
    said = agreement.said(FORETOLD, TOKENS, LENGTH, CACHE, MODEL)
    return agreement.correct(said, CACHE, MODEL)


def taught(rows: int, alike_right: float, differ_cache: float, differ_model: float) -> Agreement:
    """Taught by so many steps in which first tokens came true at these rates."""
    agreement, rng = Agreement(), np.random.default_rng(0)
    for _ in range(rows):
        said = agreement.said(FORETOLD, TOKENS, LENGTH, CACHE, MODEL)
        alike = rng.random() < alike_right
        draw = rng.random()
        cache, model = draw < differ_cache, differ_cache <= draw < differ_cache + differ_model
        agreement.observe(
            said, np.array([alike, cache, False]), np.array([alike, model, rng.random() < 0.7])
        )
    return agreement


def test_at_first_alike_is_a_little_better_and_different_is_worse() -> None:
    cache, model = judge(Agreement())
    assert cache[0, 0] > CACHE[0, 0] > cache[1, 0]
    assert model[1, 0] < MODEL[1, 0]
    assert (cache[2] == 0).all()
    assert model[2] == pytest.approx(MODEL[2], rel=1e-5)


def test_counts_decide_in_the_end() -> None:
    cache, model = judge(taught(600, alike_right=0.9, differ_cache=0.1, differ_model=0.5))
    assert cache[0, 0] == pytest.approx(0.9, abs=0.05)
    assert model[0, 0] == cache[0, 0]  # the same token
    assert cache[1, 0] == pytest.approx(0.1, abs=0.05)
    assert model[1, 0] == pytest.approx(0.5, abs=0.06)
    assert model[2, 0] == pytest.approx(0.7, abs=0.06)
    # What follows a first token is as likely as before, given that it came true.
    assert cache[1] / cache[1, 0] == pytest.approx(CACHE[1] / CACHE[1, 0], rel=1e-4)


def test_curves_stay_curves() -> None:
    sure = np.full((2, 3), 0.97, np.float32)
    agreement = taught(400, alike_right=1.0, differ_cache=0.0, differ_model=0.9)
    said = agreement.said(FORETOLD[:2], TOKENS[:2], LENGTH[:2], sure, MODEL[:2])
    for curve in agreement.correct(said, sure, MODEL[:2]):
        assert ((curve >= 0) & (curve <= 1)).all()
        assert (np.diff(curve, axis=1) <= 0).all()


def test_rows_do_not_influence_each_other() -> None:
    agreement = taught(50, 0.8, 0.2, 0.3)
    together = judge(agreement)
    for row in range(3):
        one = slice(row, row + 1)
        said = agreement.said(FORETOLD[one], TOKENS[one], LENGTH[one], CACHE[one], MODEL[one])
        alone = agreement.correct(said, CACHE[one], MODEL[one])
        assert (alone[0] == together[0][one]).all()
        assert (alone[1] == together[1][one]).all()
