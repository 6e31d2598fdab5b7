"""Traces recorded by a real server: complete, and replayed to the features that it logged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine_servers import OwnGate, generate
from hybridspec.gate.store import load_gate
from hybridspec.gate.tokens import TokenTable
from hybridspec.gate.traces import read_traces
from served_traces import compare_features

pytestmark = pytest.mark.engine

TOKENS = 32


def test_replay_gives_the_features_that_the_server_logged(
    own_gate: OwnGate, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    folder, server = own_gate.traces, own_gate.server()
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
    table = TokenTable.load(own_gate.bundled / "tokens.npz")
    assert compare_features(folder, k=load_gate(own_gate.bundled).k, table=table) > 200


def _recorded(folder: Path, count: int) -> bool:
    return any(folder.glob("*.parquet")) and len(read_traces(folder)) >= count
