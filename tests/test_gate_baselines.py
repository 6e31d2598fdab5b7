"""Predictors that need no trained gate."""

from __future__ import annotations

import numpy as np

from hybridspec.gate.baselines import Baseline, online_table, simple_baselines
from hybridspec.gate.observations import Observations
from hybridspec.gate.paper import fit_and_predict

ACCEPTED = np.array([8, 6, 0, 1], np.int32)


def observations(rows: int = 4, match: int = 5) -> Observations:
    obs = Observations.allocate(rows, 8)
    obs.length[:] = 8
    obs.score[:] = 9.0
    obs.match_length[:] = match
    obs.probs[:] = 0.9
    return obs


def test_rules_choose_by_match_length() -> None:
    obs = observations()
    obs.match_length[:] = [5, 4, 3, 5]
    seen = {name: each.judge(ACCEPTED) for name, each in simple_baselines(obs).items()}
    assert seen["score"]["precision"] == 0.5  # nine tokens foretold everywhere
    assert np.isnan(seen["match_length"]["precision"])  # six nowhere
    assert (seen["sam_decoding"]["precision"], seen["sam_decoding"]["recall"]) == (0.5, 0.5)
    assert seen["automaton"]["recall"] == 1.0
    assert seen["automaton"]["mae"] == seen["match_length"]["mae"]


def test_a_part_is_judged_as_if_alone() -> None:
    mask = np.array([True, False, True, False])
    for each in (
        Baseline(np.array([8, 0, 0, 0], np.float32), chosen=mask),
        Baseline(survival=np.ones((4, 8), np.float32)),
    ):
        part = each.take(mask)
        alone = Baseline(
            *(None if x is None else x[mask] for x in (each.length, each.survival, each.chosen))
        )
        assert part.judge(ACCEPTED[mask]) == alone.judge(ACCEPTED[mask])


def test_the_online_table_learns_from_earlier_rows_only() -> None:
    obs = observations(rows=400)
    accepted = np.zeros(400, np.int32)
    survival = online_table(obs, accepted)
    assert survival[0, 0] > 0.8
    assert survival[-1, 0] < 0.1
    accepted[200:] = 8
    again = online_table(obs, accepted)
    np.testing.assert_array_equal(survival[:200], again[:200])


def test_the_papers_gate_finds_a_line() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((2000, 3)).astype(np.float32)
    accepted = np.round(8 * matrix[:, 1]).astype(np.int32)
    predicted = fit_and_predict(matrix, accepted, matrix[:100])
    assert np.abs(predicted - accepted[:100]).mean() < 0.6
