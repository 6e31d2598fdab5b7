"""The step-time model: prior, online correction, outliers, profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hybridspec.gate.cost import PROFILES, Hopeful, StepCost, StepTimeModel
from hybridspec.gate.errors import GateError

PRIOR = StepCost(base=0.05, token=0.001, context=1e-6, model=0.01)


def test_prior() -> None:
    cost = StepTimeModel(PRIOR)
    assert cost.predict(2, 8, 1000, False) == pytest.approx(0.05 + 0.016 + 0.001)
    assert cost.predict(2, 8, 1000, True) == pytest.approx(0.077)
    by_row = StepTimeModel(replace(PRIOR, row=0.002))
    assert by_row.predict(2, 8, 1000, False) == pytest.approx(0.071)
    attentive = StepTimeModel(replace(PRIOR, attention=1e-6))
    assert attentive.predict(2, 8, 1000, False) == pytest.approx(0.067 + 0.008)


def test_profiles() -> None:
    h100 = StepTimeModel.from_profile("h100")
    assert h100.predict(1, 1, 1000, False) == pytest.approx(7.16e-3, rel=0.01)
    cpu = PROFILES["cpu"]
    for rows, width, seen in ((1, 1, 50), (1, 16, 67), (8, 1, 66), (8, 8, 173), (8, 32, 385)):
        assert cpu.seconds(rows, width, 0, False) * 1000 == pytest.approx(seen, rel=0.25)
    with pytest.raises(GateError, match="valid are h100, cpu"):
        StepTimeModel.from_profile("abacus")


def test_cells_learn_and_the_rest_follows_the_whole() -> None:
    cost = StepTimeModel(PRIOR)
    for _ in range(30):
        cost.observe(1, 1, 0, False, 2 * PRIOR.seconds(1, 1, 0, False))
        cost.observe(1, 32, 0, False, 1.5 * PRIOR.seconds(1, 32, 0, False))
    assert cost.predict(1, 1, 0, False) == pytest.approx(2 * PRIOR.seconds(1, 1, 0, False), rel=0.1)
    wide = PRIOR.seconds(1, 32, 0, False)
    assert cost.predict(1, 32, 0, False) == pytest.approx(1.5 * wide, rel=0.1)
    unseen = cost.predict(4, 8, 0, True) / PRIOR.seconds(4, 8, 0, True)
    assert 1.5 <= unseen <= 2.0


def test_cells_that_are_not_visited_follow_the_machine() -> None:
    cost = StepTimeModel(PRIOR)
    wide = 1.5 * PRIOR.seconds(4, 8, 0, False)
    for _ in range(60):
        cost.observe(4, 1, 0, False, PRIOR.seconds(4, 1, 0, False))
        cost.observe(4, 8, 0, False, wide)
    before = cost.predict(4, 8, 0, False)
    assert before == pytest.approx(wide, rel=0.05)
    for _ in range(20):  # all is slower now, but only narrow steps run
        cost.observe(4, 1, 0, False, 1.4 * PRIOR.seconds(4, 1, 0, False))
    assert 1.2 < cost.predict(4, 8, 0, False) / before < 1.4


def test_half_of_what_a_first_measurement_deviates_is_believed() -> None:
    cost = StepTimeModel(PRIOR)
    cost.start(4, 8, 0, False, 1.44 * PRIOR.seconds(4, 8, 0, False))
    assert cost.predict(4, 8, 0, False) == pytest.approx(1.2 * PRIOR.seconds(4, 8, 0, False))
    assert cost.predict(4, 1, 0, False) == PRIOR.seconds(4, 1, 0, False)


def test_outliers_do_not_count_but_drift_does() -> None:
    cost = StepTimeModel(PRIOR)
    usual = PRIOR.seconds(1, 4, 0, False)
    for i in range(100):
        cost.observe(1, 4, 0, False, usual * (50 if i % 10 == 9 else 1))
    assert cost.predict(1, 4, 0, False) == pytest.approx(usual, rel=0.01)
    assert cost.outliers >= 8
    cost.observe(1, 4, 0, False, 0.0)
    cost.observe(1, 4, 0, False, float("nan"))
    for _ in range(64):
        cost.observe(1, 4, 0, False, usual * 3)
    assert cost.predict(1, 4, 0, False) == pytest.approx(usual * 3, rel=0.05)
    for _ in range(128):  # a jump beyond the outlier bound that stays is taken in
        cost.observe(1, 4, 0, False, usual * 100)
    assert cost.predict(1, 4, 0, False) == pytest.approx(usual * 100, rel=0.2)


def test_the_share_of_draft_extend_is_learned_and_taken_off_where_none_follows() -> None:
    cost = StepTimeModel(PRIOR)
    assert cost.extend_share == 0.0
    usual = PRIOR.seconds(16, 1, 0, False)
    for _ in range(10):
        cost.observe(16, 1, 0, False, usual, 0.1 * usual)
        cost.observe(16, 1, 0, True, usual + PRIOR.model, 0.05 * usual)  # another kind of step
        cost.observe(16, 1, 0, False, 0.9 * usual, 0.0)
    assert cost.extend_share == pytest.approx(0.1)
    assert cost.predict(16, 1, 0, False) == pytest.approx(usual, rel=0.01)


def test_hope_is_for_shapes_that_were_hardly_or_long_not_seen() -> None:
    cost = StepTimeModel(PRIOR)
    hopeful = Hopeful(cost)
    shape = (16, 1, 0, False)
    assert hopeful.predict(*shape) < 0.8 * cost.predict(*shape)
    for _ in range(3):
        cost.observe(*shape, 0.07)
    assert hopeful.predict(*shape) == cost.predict(*shape)
    for _ in range(1000):
        cost.observe(16, 2, 0, False, 0.09)
    assert hopeful.predict(*shape) < 0.8 * cost.predict(*shape)
    assert hopeful.predict(16, 2, 0, False) == cost.predict(16, 2, 0, False)


def test_profile_round_trip(tmp_path: Path) -> None:
    cost = StepTimeModel(PRIOR)
    for _ in range(5):
        cost.observe(3, 8, 10, True, 0.2)
        cost.observe(3, 8, 10, False, 0.2, 0.02)
    path = tmp_path / "profile.json"
    cost.save(path)
    again = StepTimeModel.load(path)
    for cell in ((3, 8, 10, True), (4, 8, 10, True), (9, 1, 10, False)):
        assert again.predict(*cell) == pytest.approx(cost.predict(*cell))
    assert again.extend_share == pytest.approx(0.1)


def test_bad_profiles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(GateError, match="no file"):
        StepTimeModel.load(path)
    for content in ("{", "[]", "{}", json.dumps({"schema": 99})):
        path.write_text(content)
        with pytest.raises(GateError, match="cannot be used"):
            StepTimeModel.load(path)
