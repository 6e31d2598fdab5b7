"""Recording: what the planner saw is replayed bit for bit; trouble loses traces only."""

from __future__ import annotations

import itertools
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.adapters.sglang.planner import StepPlanner
from hybridspec.adapters.sglang.trace_recorder import TraceRecorder
from hybridspec.gate.traces import read_traces
from served_traces import compare_features
from test_sglang_planner import Reason, Request

EMPTY, ONE = np.zeros(0, np.int32), np.ones(1, np.int32)
CACHE = np.array([Source.CACHE], np.int8)


def serve(planner: StepPlanner, requests: list[Request], truth: dict[str, list[int]]) -> None:
    """Serve requests, three at a time, each up to its true output; the last one is aborted."""
    waiting = list(requests)
    running: list[Request] = []
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop(0))
        plan = planner.plan(running)
        accepted = []
        for row, request in enumerate(running):
            left = truth[request.rid][len(request.output_ids) :]
            said = plan.tokens[row, : plan.length[row]].tolist()
            if plan.source[row] != Source.CACHE:
                said = []
            pairs = zip(said, left, strict=False)
            agreed = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            accepted.append(min(agreed, len(left) - 1))
            request.output_ids.extend(left[: accepted[-1] + 1])
        planner.settle(accepted)
        for request in [r for r in running if len(r.output_ids) == len(truth[r.rid])]:
            request.finished_reason = Reason("abort" if request is requests[-1] else "length")
            planner.finish(request.rid)
            running.remove(request)


def talk(count: int) -> tuple[list[Request], dict[str, list[int]]]:
    """Requests that copy from their prompts and from each other."""
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 300, 12).tolist() for _ in range(6)]
    requests, truth = [], {}
    for number in range(count):
        prompt = [*phrases[number % 6], *rng.integers(0, 300, 10).tolist()]
        output = [t for _ in range(4) for t in (*phrases[rng.integers(6)], int(rng.integers(300)))]
        rid = f"r{number}"
        salt = "tenant" if number % 4 == 3 else None
        requests.append(Request(rid, prompt, array("q", output[:1]), cache_salt=salt))
        truth[rid] = output
    return requests, truth


def planner(folder: Path, registry: CollectorRegistry, **settings: Any) -> StepPlanner:
    return StepPlanner(
        HybridConfig(policy="cache", trace_dir=str(folder), **settings),
        model_steps=4,
        device="cpu",
        times_steps=False,
        model="tiny",
        registry=registry,
    )


def test_recorded_steps_replay_bit_for_bit(tmp_path: Path) -> None:
    made = planner(tmp_path, CollectorRegistry(), trace_features=True)
    requests, truth = talk(12)
    serve(made, requests, truth)
    made.close()
    traces = read_traces(tmp_path)
    assert {trace.id for trace in traces} == set(truth)
    for trace in traces:
        assert trace.output_ids.tolist() == truth[trace.id]
        assert trace.model == "tiny"
        assert trace.steps is not None
        assert (trace.steps.accepted <= trace.steps.proposed).all()
        assert (trace.steps.proposed < trace.steps.width).all()
    assert [trace.id for trace in traces if trace.finish == "abort"] == ["r11"]
    assert len({trace.scope for trace in traces}) == 2
    assert compare_features(tmp_path, k=31) > 100


def test_a_share_of_the_requests_is_recorded(tmp_path: Path) -> None:
    made = planner(tmp_path, CollectorRegistry(), trace_sample=0.5)
    requests, truth = talk(40)
    serve(made, requests, truth)
    made.close()
    assert 8 <= len(read_traces(tmp_path)) <= 32
    assert read_traces(tmp_path)[0].steps is not None


def recorder(folder: Path, lost: list[int], budget_bytes: int = 1 << 30) -> TraceRecorder:
    return TraceRecorder(
        folder, sample=1.0, budget_bytes=budget_bytes, features=(), model="m", lost=lost.append
    )


def record(made: TraceRecorder, rid: str, output: int = 4) -> None:
    made.step(0, [rid], ONE, CACHE, 2, ONE, ONE, None)
    made.finish(rid, np.arange(4, dtype=np.int32), np.arange(output, dtype=np.int32), None, "stop")


def test_a_full_disk_loses_traces_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[int] = []
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    made = recorder(in_the_way / "traces", lost)
    for number in range(3):
        record(made, f"r{number}")
    made.close()
    assert sum(lost) == 3
    assert caplog.text.count("cannot be written") == 1


def test_the_oldest_files_go_when_the_budget_is_used(tmp_path: Path) -> None:
    lost: list[int] = []
    for number in range(4):
        made = recorder(tmp_path, lost, budget_bytes=40_000)
        record(made, f"r{number}", output=4000 + number)
        made.close()
    left = [trace.id for trace in read_traces(tmp_path)]
    assert left[-1] == "r3"
    assert "r0" not in left
    assert not lost


def test_vanished_requests_are_forgotten(tmp_path: Path) -> None:
    lost: list[int] = []
    made = recorder(tmp_path, lost)
    made.step(0, ["gone"], ONE, CACHE, 2, ONE, ONE, None)
    made.drop("gone")
    made.finish("gone", EMPTY, EMPTY, None, "stop")
    record(made, "here")
    made.close()
    assert [trace.id for trace in read_traces(tmp_path)] == ["here"]
