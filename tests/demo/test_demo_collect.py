"""Collecting traces from a small real HTTP server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hybridspec.demo.collect import collect
from hybridspec.gate.traces import read_traces
from hybridspec.loadtest.server import Server

COMMAND = (sys.executable, str(Path(__file__).parents[1] / "loadtest" / "http_server.py"))


class Letters:
    """A tokenizer of letters, shaped as Hugging Face's."""

    eos_token_id = 0

    def apply_chat_template(self, messages: Any, *, tokenize: bool, **_: Any) -> str:
        assert not tokenize
        return "<" + "".join(message["content"] for message in messages) + ">"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]


def test_any_chat_server_will_do(tmp_path: Path) -> None:
    workload = tmp_path / "w.jsonl"
    record = {"id": "a", "workload": "w", "kind": "chat"}
    workload.write_text(json.dumps({**record, "messages": [{"role": "user", "content": "ab"}]}))
    out = tmp_path / "traces"
    with Server([], log_path=tmp_path / "log", command=COMMAND) as server:
        assert collect(server.url, [workload], out, tokenizer=Letters()) == 1
    (trace,) = read_traces(out)
    assert trace.prompt_ids.tolist() == [ord(letter) for letter in "<ab>"]
    assert trace.output_ids.tolist() == [*(ord(letter) for letter in "hello"), 0]
    assert trace.finish == "stop"


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
    out = tmp_path / "deep" / "traces"
    with Server([], log_path=tmp_path / "log", command=COMMAND) as server:
        written = collect(server.url, [workload], out, max_tokens=3, streams=2, limit=2)
    assert written == 2
    first, second = read_traces(out)
    assert (first.id, first.workload, first.kind) == ("ab", "w", "chat")
    assert first.prompt_ids.tolist() == [97, 98]
    assert first.output_ids.tolist() == [97, 97, 97]
    assert second.prompt_ids.tolist() == [99, 100]
