"""``hybridspec gate``: traces to a served gate and its figures, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.gate.features import TOKEN_FEATURES
from hybridspec.gate.replay import replay
from hybridspec.gate.store import load_gate
from hybridspec.gate.tokens import TokenTable
from hybridspec.gate.traces import Trace, trace_sets, write_traces
from hybridspec.gate.train import TrainSettings
from hybridspec.gate_cli import app
from hybridspec.gate_training import evaluate_gate, train_gate

runner = CliRunner()


def made_traces(workload: str, copied: float, count: int, seed: int) -> list[Trace]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        prompt = rng.integers(0, 200, 80).astype(np.int32)
        parts = []
        for _ in range(6):
            start = int(rng.integers(0, 60))
            parts.append(
                prompt[start : start + 20]
                if rng.random() < copied
                else rng.integers(0, 200, 10).astype(np.int32)
            )
        made.append(Trace(f"{workload}-{i}", workload, workload, prompt, np.concatenate(parts)))
    return made


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name in ("copy", "free"):
        (folder / name).mkdir()
    write_traces(folder / "copy" / "all.parquet", made_traces("copy", 0.9, 25, 0))
    write_traces(folder / "free" / "all.parquet", made_traces("free", 0.1, 25, 1))
    return folder


@pytest.fixture(scope="module")
def gate(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "gate"
    table = TokenTable.from_strings(["foo", " ", "1"] * 70)
    settings = TrainSettings(hidden=(16,), epochs=4, batch=256)
    said: list[str] = []
    summary = train_gate(trace_sets([traces]), out, table=table, settings=settings, say=said.append)
    assert summary["data"]["requests"] == 50
    assert set(summary["held_out"]) == {"pooled", "copy", "free"}
    assert any("epoch" in line for line in said)
    return out


@pytest.mark.slow
def test_a_trained_gate_is_served_with_its_own_token_table(gate: Path) -> None:
    loaded = load_gate(gate, k=32)
    assert set(TOKEN_FEATURES) <= set(loaded.features.names)
    held = loaded.manifest.training["held_out"]["pooled"]
    assert held["mae"] < held["baselines"]["score"]["mae"]
    obs = replay(made_traces("copy", 0.9, 3, 9), SuffixCache()).obs
    prediction = loaded.judge(obs.take(np.arange(min(obs.rows, 64))))
    assert (np.diff(prediction.survival, axis=1) <= 1e-6).all()


@pytest.mark.slow
def test_commands(gate: Path, traces: Path, tmp_path: Path) -> None:
    shown = runner.invoke(app, ["info", str(gate)])
    assert shown.exit_code == 0
    assert "probe passed" in shown.stdout
    timed = runner.invoke(app, ["bench", "--gate", str(gate), "--json"])
    assert timed.exit_code == 0
    times = json.loads(timed.stdout)["times_us"]
    assert [line["rows"] for line in times] == [1, 8, 64]
    assert all(0 < line["features"] < line["p50"] <= line["p99"] for line in times)
    page = tmp_path / "deep" / "gate.html"
    args = ["eval", "--traces", str(traces), "--gate", str(gate), "--held-out", "--json"]
    done = runner.invoke(app, [*args, "--html", str(page)])
    assert done.exit_code == 0
    assert "Calibration of the gate" in page.read_text()
    seen = json.loads(done.stdout)
    assert set(seen) == {"pooled", "copy", "free"}
    assert {"precision", "recall", "ece", "mae", "regret", "baselines"} <= set(seen["pooled"])
    compared = {"score", "match_length", "sam_decoding", "automaton", "online_table", "paper"}
    assert set(seen["copy"]["baselines"]) == compared
    assert sum(rows for _, _, rows in seen["pooled"]["reliability"]) == seen["pooled"]["rows"]


@pytest.mark.slow
def test_one_workload_is_left_out_at_a_time(traces: Path) -> None:
    done = runner.invoke(app, ["leave-one-out", "--traces", str(traces), "--epochs", "2", "--json"])
    assert done.exit_code == 0
    seen = json.loads(done.stdout)
    assert set(seen) == {"copy", "free"}
    assert all("mae" in each and "score" in each["baselines"] for each in seen.values())
    done = runner.invoke(app, ["leave-one-out", "--traces", str(traces / "copy")])
    assert done.exit_code == 1
    assert "at least two" in done.stderr


def test_baselines_need_no_gate(traces: Path) -> None:
    every = evaluate_gate([traces / "copy"], say=lambda line: None)
    held = evaluate_gate([traces / "copy"], held_out=True, say=lambda line: None)
    assert 0 < held["pooled"]["rows"] < every["pooled"]["rows"]
    assert "mae" not in every["pooled"]
    done = runner.invoke(app, ["eval", "--traces", str(traces)])
    assert done.exit_code == 0
    assert "match_length" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "/nonexistent"],
        ["eval", "--traces", "/nonexistent"],
        ["train", "--traces", "/nonexistent", "--out", "/nonexistent/gate"],
    ],
)
def test_refusals_are_one_line(arguments: list[str]) -> None:
    done = runner.invoke(app, arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("hybridspec: ")
    assert done.stderr.count("\n") == 1
