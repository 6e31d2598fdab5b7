"""Training on made data, and the figures of evaluation against plain ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.evaluate import (
    auc,
    expected_calibration_error,
    judge,
    judge_curves,
    precision_at_recall,
    precision_recall,
    precision_recall_curve,
    regret,
    reliability,
)
from hybridspec.gate.train import TrainSettings, fit, split_groups, survival_loss

K = 8
NAMES = ["score", "draft_length"]


def made_rows(
    rows: int = 4000, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
    """The score says how likely each further token is: geometric accepted lengths."""
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    length = rng.integers(1, K + 1, rows)
    accepted = np.minimum(rng.geometric(1.0 - 0.95 * score) - 1, length)
    matrix = np.stack([score * 10, length], axis=1).astype(np.float32)
    return matrix, accepted.astype(np.int32), (np.arange(rows) // 20).astype(np.int32)


def test_training_finds_the_curve() -> None:
    matrix, accepted, group = made_rows()
    told: list[float] = []
    settings = TrainSettings(hidden=(16,), epochs=15, batch=256, learning_rate=1e-2)
    done = fit(matrix, accepted, group, NAMES, K, settings, lambda epoch, loss: told.append(loss))
    assert done.loss == min(told)
    assert done.loss < 0.9 * told[0]
    probe = torch.tensor([[8.0, 8.0], [8.0, 3.0], [2.0, 8.0]])
    with torch.no_grad():
        curve, expected = done.model(probe)
    truth = 0.95 * 0.8 * np.cumprod(np.full(K, 0.95 * 0.8)) / (0.95 * 0.8)
    np.testing.assert_allclose(curve[0].numpy(), truth, atol=0.08)
    assert (curve[1, 3:] == 0).all()
    assert expected[0] > expected[1] > expected[2]


def test_training_repeats_itself() -> None:
    matrix, accepted, group = made_rows(400)
    settings = TrainSettings(hidden=(8,), epochs=2)
    losses = {fit(matrix, accepted, group, NAMES, K, settings).loss for _ in range(2)}
    assert len(losses) == 1


def test_groups_stay_whole() -> None:
    group = np.repeat(np.arange(40), 7)
    rest, held = split_groups(group, 0.2, seed=1)
    assert (rest ^ held).all()
    assert len(set(group[held])) == 8
    assert not set(group[held]) & set(group[rest])


def test_loss_ignores_what_lies_beyond_the_draft() -> None:
    log_survival = torch.log(torch.tensor([[0.9, 0.5, 0.2]]))
    inside = survival_loss(log_survival, torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    assert float(inside) == pytest.approx(-(np.log(0.9) + np.log(0.5)) / 2, rel=1e-4)
    certain = torch.zeros(1, 3)
    loss = survival_loss(certain, torch.tensor([[0.0]]), torch.tensor([[3.0]]))
    assert torch.isfinite(loss)


def test_unusable_training_data_is_refused() -> None:
    matrix, accepted, group = made_rows(100)
    with pytest.raises(GateError, match="draft_length"):
        fit(matrix, accepted, group, ["score", "prob_1"], K)
    with pytest.raises(GateError, match="collect more traces"):
        fit(matrix, accepted, group * 0, NAMES, K)
    with pytest.raises(GateError, match="collect more traces"):
        fit(matrix[:0], accepted[:0], group[:0], NAMES, K)


def test_figures_equal_plain_ones() -> None:
    rng = np.random.default_rng(0)
    score = rng.integers(0, 8, 200).astype(np.float32)
    hit = rng.random(200) < score / 10
    pairs = [(a, b) for a in score[hit] for b in score[~hit]]
    plain = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert auc(score, hit) == pytest.approx(float(plain))
    chosen = score >= 5
    precision, recall = precision_recall(chosen, hit)
    assert precision == pytest.approx(float(hit[chosen].mean()))
    assert recall == pytest.approx(float(chosen[hit].mean()))
    cuts = [c for c in range(8) if precision_recall(score >= c, hit)[1] >= 0.7]
    expected = precision_recall(score >= max(cuts), hit)[0]
    assert precision_at_recall(score, hit) == pytest.approx(expected)


def test_calibration_error() -> None:
    chance = np.repeat([0.1, 0.9], 1000).astype(np.float32)
    exact = np.concatenate([np.arange(1000) < 100, np.arange(1000) < 900])
    assert expected_calibration_error(chance, exact) == pytest.approx(0.0, abs=1e-6)
    assert expected_calibration_error(chance, ~exact) == pytest.approx(0.8, abs=1e-6)


def test_curves_of_precision_and_recall() -> None:
    score = np.array([9, 9, 7, 5, 5, 1], np.float32)
    hit = np.array([1, 0, 1, 1, 0, 0], np.bool_)
    seen = {(r, p) for r, p in precision_recall_curve(score, hit)}
    assert seen == {(0.3333, 0.5), (0.6667, 0.6667), (1.0, 0.6)}
    assert precision_recall_curve(score, np.zeros(6, np.bool_)) == []


def test_reliability_counts_every_row() -> None:
    chance = np.array([0.02, 0.02, 0.98, 1.0], np.float32)
    bins = reliability(chance, np.array([0, 1, 1, 1], np.bool_))
    assert bins == [[0.02, 0.5, 2.0], [0.99, 1.0, 2.0]]


def test_regret_is_zero_for_the_truth_and_the_price_of_folly_otherwise() -> None:
    accepted = np.array([0, 3, 8], np.int32)
    truth = (np.arange(K) < accepted[:, None]).astype(np.float32)
    assert regret(truth, accepted) == pytest.approx(0.0, abs=1e-6)
    never, always = np.zeros((3, K), np.float32), np.ones((3, K), np.float32)
    assert regret(never, accepted) == pytest.approx((3 + 8) * 0.9 / 3)
    assert regret(always, accepted) == pytest.approx((8 + 5) * 0.1 / 3)
    assert np.isnan(regret(never[:0], accepted[:0]))


def test_evaluation_of_a_perfect_gate() -> None:
    accepted = np.array([0, 3, 6, 8, 7, 0], np.int32)
    survival = (np.arange(K) < accepted[:, None]).astype(np.float32)
    seen = judge_curves(survival, accepted)
    for name in ("auc", "precision", "recall", "precision_at_recall_0.7"):
        assert seen[name] == 1.0
    assert seen["mae"] == seen["mae_mean"] == seen["ece"] == 0.0


def test_figures_without_rows_or_hits_are_nan() -> None:
    none = np.zeros(0, np.float32)
    assert np.isnan(judge(none, none.astype(np.int32))["mae"])
    seen = judge(np.zeros(3, np.float32), np.zeros(3, np.int32))
    assert np.isnan(seen["auc"])
    assert np.isnan(seen["recall"])
