"""Collecting traces from a small real HTTP server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hybridspec.demo.collect import collect
from hybridspec.loadtest.server import Server

COMMAND = (sys.executable, str(Path(__file__).parents[1] / "loadtest" / "http_server.py"))


def test_traces_hold_prompt_and_output_tokens(tmp_path: Path) -> None:
    workload = tmp_path / "w.jsonl"
    records = [
        {
            "id": text,
            "workload": "w",
            "kind": "chat",
            "messages": [{"role": "user", "content": text}],
        }
        for text in ("ab", "cd", "ef")
    ]
    workload.write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "deep" / "traces.jsonl"
    with Server([], log_path=tmp_path / "log", command=COMMAND) as server:
        written = collect(server.url, [workload], out, max_tokens=3, streams=2, limit=2)
    assert written == 2
    traces = [json.loads(line) for line in out.read_text().splitlines()]
    assert traces[0] == {
        "id": "ab",
        "workload": "w",
        "kind": "chat",
        "prompt_ids": [97, 98],
        "output_ids": [97, 97, 97],
    }
    assert traces[1]["prompt_ids"] == [99, 100]
