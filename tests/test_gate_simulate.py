"""The simulator: arithmetic of small cases, and the order that any run must keep."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.cli import app
from hybridspec.gate.cost import StepCost, StepTimeModel
from hybridspec.gate.policy import make_policy
from hybridspec.gate.simulate import Oracle, Outcome, simulate
from hybridspec.gate.traces import Trace, write_traces

COST = StepCost(base=1.0, token=0.01, context=0.0, model=0.1)
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


def served(policy: str, traces: list[Trace], batch: int = 4, steps: int = 4) -> Outcome:
    decider = make_policy(policy, ladder=LADDER, cost=StepTimeModel(COST))
    return simulate(traces, decider, COST, batch=batch, drafter=SuffixCache(), model_steps=steps)


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
    assert max(rates.values()) <= oracle.rate * 1.001
    assert rates["goodput"] >= 0.97 * max(rates.values())


def test_missing_lengths_are_refused() -> None:
    trace = Trace("a", "w", "k", np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32))
    with pytest.raises(ValueError, match="EAGLE3"):
        served("model", [trace])


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    write_traces(tmp_path / "all.parquet", made(30))
    page = tmp_path / "page.html"
    args = ["simulate", "--traces", str(tmp_path), "--batch", "1,4", "--json", "--html", str(page)]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert [(cell["workload"], cell["batch"]) for cell in results["cells"]] == [("w", 1), ("w", 4)]
    for cell in results["cells"]:
        assert cell["speedup"]["goodput"] <= cell["speedup"]["oracle"] * 1.001
    assert "Simulated speed-up" in page.read_text()
    done = CliRunner().invoke(app, [*args[:3], "--batch", "x"])
    assert done.exit_code == 1
    assert "whole numbers" in done.stderr
