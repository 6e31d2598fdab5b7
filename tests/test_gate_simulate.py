"""The simulator: arithmetic of small cases, and the order that any run must keep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.cli import app
from hybridspec.gate.ablations import AlwaysWide, MeanOnly, RowByRow
from hybridspec.gate.base import StepView
from hybridspec.gate.cost import StepCost, StepTimeModel
from hybridspec.gate.goodput import Goodput
from hybridspec.gate.policy import make_policy
from hybridspec.gate.simulate import Oracle, Outcome, simulate
from hybridspec.gate.traces import Trace, write_traces
from hybridspec.simulation import ABLATIONS

COST = StepTimeModel(StepCost(base=1.0, token=0.01, context=0.0, model=0.1))
LADDER = (1, 2, 4, 5, 8, 16, 32)


def made(count: int, seed: int = 0, model: int = 2) -> list[Trace]:
    """Requests that copy half of the time; EAGLE3 gets ``model`` tokens everywhere it can."""
    rng = np.random.default_rng(seed)
    traces = []
    for number in range(count):
        prompt = rng.integers(0, 500, 60)
        parts = [
            prompt[at : at + 15] if rng.random() < 0.5 else rng.integers(0, 500, 8)
            for at in rng.integers(0, 40, 6)
        ]
        output = np.concatenate(parts).astype(np.int32)
        left = len(output) - 1 - np.arange(len(output))
        lengths = np.minimum(model, left).astype(np.int32)
        traces.append(
            Trace(f"{number}", "w", "k", prompt.astype(np.int32), output, model_accepted=lengths)
        )
    return traces


def served(
    policy: str, traces: list[Trace], batch: int = 4, steps: int = 4, *, merges: bool = False
) -> Outcome:
    return simulate(
        traces,
        make_policy(policy, ladder=LADDER, cost=COST),
        COST,
        batch=batch,
        drafter=SuffixCache(),
        model_steps=steps,
        merges=merges,
    )


def test_plain_decoding_takes_one_step_a_token() -> None:
    traces = made(3)
    tokens = sum(len(trace.output_ids) - 1 for trace in traces)
    alone = served("none", traces, batch=1, steps=0)
    assert (alone.tokens, alone.steps, alone.accepted) == (tokens, tokens, 0)
    assert alone.seconds == pytest.approx(1.01 * tokens)
    together = served("none", traces, batch=3, steps=0)
    assert together.tokens == tokens
    assert together.steps == max(len(trace.output_ids) for trace in traces) - 1


def test_a_fixed_chain_yields_what_the_trace_says() -> None:
    (trace,) = made(1, model=2)
    seen = served("model", [trace], batch=1)
    steps = -(-(len(trace.output_ids) - 1) // 3)
    assert seen.steps == steps
    assert seen.seconds == pytest.approx(steps * (1.0 + 5 * 0.01 + 0.1))
    assert seen.rows == (0, 0, steps)


def test_every_token_is_served_whatever_the_policy() -> None:
    traces = made(12)
    tokens = sum(len(trace.output_ids) - 1 for trace in traces)
    for policy in ("none", "model", "cache", "score", "threshold", "goodput"):
        assert served(policy, traces).tokens == tokens


def test_a_row_with_two_branches_keeps_the_longer_one() -> None:
    traces = made(24)
    chains, both = served("both", traces), served("both", traces, merges=True)
    assert chains.trees == 0
    assert both.trees > both.steps / 4
    assert both.tokens == chains.tokens
    # The cache draft alone was a guess; with EAGLE3's beside it no step brings less than EAGLE3's.
    assert both.steps < chains.steps
    assert both.steps <= served("model", traces, steps=4).steps
    chosen = served("goodput", traces, merges=True)
    assert chosen.trees > 0
    assert chosen.rate > 0.97 * served("goodput", traces).rate


@pytest.mark.parametrize("batch", [1, 4])
def test_nobody_beats_the_oracle(batch: int) -> None:
    traces = made(24)
    oracle = simulate(
        traces, Oracle(LADDER, COST), COST, batch=batch, drafter=SuffixCache(), model_steps=4
    )
    rates = {
        policy: served(policy, traces, batch).rate
        for policy in ("none", "model", "cache", "score", "threshold", "goodput")
    }
    rates["merged"] = served("goodput", traces, batch, merges=True).rate
    assert max(rates.values()) <= oracle.rate * 1.001
    assert rates["goodput"] >= 0.97 * max(rates.values())


def test_missing_lengths_are_refused() -> None:
    trace = Trace("a", "w", "k", np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32))
    with pytest.raises(ValueError, match="EAGLE3"):
        served("model", [trace])


def test_time_per_token_is_the_requests_own() -> None:
    # Every token takes a step; a request waits before it starts, not between tokens.
    alone = served("none", made(3), batch=1, steps=0)
    assert alone.tpot == pytest.approx([1.01] * 3)


def test_step_times_that_start_wrong_are_learned() -> None:
    traces = made(24)
    rates = {}
    for learn in (False, True):
        times = StepTimeModel(StepCost(base=1.0, token=1e-6, context=0.0, model=0.0))
        costly = StepTimeModel(StepCost(base=1.0, token=0.2, context=0.0, model=0.1))
        rates[learn] = simulate(
            traces,
            Goodput(LADDER, times),
            costly,
            batch=8,
            drafter=SuffixCache(),
            learns=times if learn else None,
        ).rate
    assert rates[True] > 1.1 * rates[False]


def view(rows: int) -> StepView:
    rng = np.random.default_rng(rows)
    survival = np.sort(rng.random((rows, 8)).astype(np.float32), axis=1)[:, ::-1]
    return StepView(
        cache_length=np.full(rows, 8, np.int32),
        cache_score=survival.sum(axis=1),
        survival=survival,
        model_survival=np.full((rows, 3), 0.4, np.float32),
        context_tokens=10 * rows,
    )


def test_ablations_take_one_idea_out() -> None:
    times = COST
    whole = Goodput(LADDER, times)
    one, many = view(1), view(6)
    alone = RowByRow(LADDER, times).decide(one)
    assert (alone.width, alone.length) == (whole.decide(one).width, whole.decide(one).length)
    costly = StepTimeModel(StepCost(base=1.0, token=10.0, context=0.0, model=0.0))
    assert Goodput(LADDER, costly).decide(many).width == 1
    assert AlwaysWide(LADDER, costly).decide(many).width == 2
    assert RowByRow(LADDER, times).decide(many).width >= whole.decide(many).width
    # A sure mean of two tokens: the rung that holds them, whatever could still come after.
    curve = np.array([[0.9] + [0.22] * 5], np.float32)
    hopeful = replace(one, cache_length=np.array([6], np.int32), survival=curve)
    assert whole.decide(hopeful).width == 8
    assert MeanOnly(LADDER, times).decide(hopeful).width == 4


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    write_traces(tmp_path / "all.parquet", made(30))
    page = tmp_path / "page.html"
    args = ["simulate", "--traces", str(tmp_path), "--batch", "1,4", "--json", "--html", str(page)]
    done = CliRunner().invoke(app, [*args, "--ablations"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert [(cell["workload"], cell["batch"]) for cell in results["cells"]] == [("w", 1), ("w", 4)]
    for cell in results["cells"]:
        assert cell["speedup"]["goodput"] <= cell["speedup"]["oracle"] * 1.001
        assert set(ABLATIONS) < set(cell["speedup"])
        for times in cell["tpot_ms"].values():
            assert 0 < times["p50"] <= times["p95"] <= times["slowest_decile"] * 1.001
    assert "Simulated speed-up" in page.read_text()
    done = CliRunner().invoke(app, [*args[:3], "--batch", "x"])
    assert done.exit_code == 1
    assert "whole numbers" in done.stderr
