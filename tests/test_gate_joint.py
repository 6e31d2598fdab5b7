"""What two drafts of a row say about each other: what is counted and what it changes."""

from __future__ import annotations

import numpy as np
import pytest

from hybridspec.gate.joint import Joined, JointAcceptance

CACHE = np.array([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.0, 0.0, 0.0]], np.float32)
MODEL = np.array([[0.6, 0.3], [0.6, 0.3], [0.6, 0.3]], np.float32)
RATES = np.array([[0.6, 0.5]] * 3, np.float32)
TOKENS = np.array([[7, 8, 9], [7, 8, 9], [-1, -1, -1]], np.int32)
LENGTH = np.array([3, 3, 0], np.int32)
FORETOLD = np.array([7, 5, 5])  # alike, different, and no cache draft
ALL = np.arange(3)


def judge(joint: JointAcceptance, foretold: np.ndarray | None = FORETOLD) -> Joined:
    return joint.join(TOKENS, LENGTH, CACHE, RATES, foretold)


def taught(
    steps: int,
    lengths: list[tuple[float, float]],
    foretold: np.ndarray | None = FORETOLD,
    *,
    seed: int = 0,
) -> JointAcceptance:
    """Taught by steps that verified both drafts: ``lengths`` are each row's rates at which the
    first token of the cache draft, else of EAGLE3's, comes true (all of the draft then does)."""
    joint, rng = JointAcceptance(2), np.random.default_rng(seed)
    for _ in range(steps):
        draw = rng.random(3)
        rates = np.array(lengths)
        cache = draw < rates[:, 0]
        model = ~cache & (draw < rates.sum(axis=1))
        alike = cache & (foretold is not None and TOKENS[:, 0] == FORETOLD)
        joint.observe(
            judge(joint, foretold),
            ALL,
            matched=np.where(cache, LENGTH, 0).astype(np.int32),
            cache_tried=LENGTH,
            model_hits=np.where(model | alike, 2, 0).astype(np.int32),
            model_tried=np.full(3, 2, np.int32),
        )
    return joint


def test_at_first_alike_is_better_and_different_is_worse() -> None:
    found = judge(JointAcceptance(2))
    assert found.survival[0, 0] > CACHE[0, 0] > found.survival[1, 0]
    assert found.model_survival[1, 0] < MODEL[1, 0]
    assert found.model_survival[2] == pytest.approx(MODEL[2], rel=1e-5)
    assert found.survival[2].max() == 0
    unknown = judge(JointAcceptance(2), None)
    assert unknown.survival == pytest.approx(CACHE)
    assert unknown.model_survival == pytest.approx(MODEL, rel=1e-5)


def test_different_drafts_never_come_true_together() -> None:
    for joint in (JointAcceptance(2), taught(300, [(0.8, 0.0), (0.4, 0.4), (0.0, 0.5)])):
        overlap = judge(joint).overlap
        assert overlap[1].max() == 0
        assert overlap[2].max() == 0
        assert overlap[0, 0] == judge(joint).survival[0, 0]  # the same token, the same event


def test_counts_decide_in_the_end() -> None:
    found = judge(taught(800, [(0.9, 0.0), (0.1, 0.5), (0.0, 0.7)]))
    assert found.survival[0, 0] == pytest.approx(0.9, abs=0.05)
    assert found.model_survival[0, 0] == found.survival[0, 0]
    assert found.survival[1, 0] == pytest.approx(0.1, abs=0.05)
    assert found.model_survival[1, 0] == pytest.approx(0.5, abs=0.06)
    assert found.model_survival[2, 0] == pytest.approx(0.7, abs=0.06)
    # What follows a first token is as likely as before, given that it came true.
    expected = CACHE[1] / CACHE[1, 0]
    assert found.survival[1] / found.survival[1, 0] == pytest.approx(expected, rel=1e-4)


def test_what_both_share_is_counted() -> None:
    exclusive = judge(taught(400, [(0.4, 0.5)] * 2 + [(0.0, 0.5)], None), None)
    assert exclusive.overlap[:2].max() < 0.08
    assert judge(JointAcceptance(2), None).overlap[0, 0] > 0.15


def test_curves_stay_curves() -> None:
    joint = taught(400, [(1.0, 0.0), (0.0, 0.9), (0.0, 1.0)])
    sure = np.full((3, 3), 0.97, np.float32)
    found = joint.join(TOKENS, LENGTH, sure, RATES, FORETOLD)
    for curve in (found.survival, found.model_survival, found.overlap):
        assert ((curve >= 0) & (curve <= 1)).all()
    for curve in (found.survival, found.model_survival):
        assert (np.diff(curve, axis=1) <= 0).all()
    shared = np.minimum(found.survival[:, :2], found.model_survival)
    assert (found.overlap <= shared + 1e-6).all()


def test_rows_do_not_influence_each_other() -> None:
    joint = taught(50, [(0.8, 0.1), (0.2, 0.3), (0.0, 0.5)])
    together = judge(joint)
    for row in range(3):
        one = slice(row, row + 1)
        alone = joint.join(TOKENS[one], LENGTH[one], CACHE[one], RATES[one], FORETOLD[one])
        for name in ("survival", "model_survival", "overlap"):
            assert (getattr(alone, name) == getattr(together, name)[one]).all()
