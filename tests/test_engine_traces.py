"""Traces recorded by a real server: complete, and replayed to the features that it logged."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from engine_servers import EngineServers, generate
from hybridspec.demo.lineup import Assets
from hybridspec.gate.store import load_gate
from hybridspec.gate.tokens import TokenTable
from hybridspec.gate.traces import read_traces
from served_traces import compare_features

pytestmark = pytest.mark.engine

TOKENS = 32


def test_replay_gives_the_features_that_the_server_logged(
    engine: EngineServers,
    prompts: list[list[int]],
    plain_text: list[list[int]],
    tmp_path: Path,
) -> None:
    folder, config = tmp_path / "traces", tmp_path / "hybrid.json"
    config.write_text(json.dumps({"trace_features": True}))
    server = engine("goodput", "--hybrid-trace-dir", str(folder), "--hybrid-config", str(config))
    asked = [*prompts, *prompts[:8]]
    expected = [ids[:TOKENS] for ids in (*plain_text, *plain_text[:8])]
    assert generate(server, asked, TOKENS, concurrency=8) == expected
    deadline = time.monotonic() + 30.0
    # SGLang warms up with requests of its own before ours.
    while not _recorded(folder, len(asked)) and time.monotonic() < deadline:
        time.sleep(0.5)
    traces = read_traces(folder)
    ours = [trace for trace in traces if len(trace.output_ids) == TOKENS]
    said = sorted(trace.output_ids.tolist() for trace in ours)
    assert said == sorted(ids for ids in expected if len(ids) == TOKENS)
    gate = Assets.bundled(folder).gate
    assert gate is not None
    table = TokenTable.load(gate / "tokens.npz")
    assert compare_features(folder, k=load_gate(gate).k, table=table) > 200


def _recorded(folder: Path, count: int) -> bool:
    return any(folder.glob("*.parquet")) and len(read_traces(folder)) >= count
