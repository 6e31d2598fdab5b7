"""Loading and refusing workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridspec.loadtest.workloads import BadWorkload, bundled_names, load

GOOD: dict[str, Any] = {
    "id": "a",
    "workload": "w",
    "kind": "chat",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_bundled_workloads_are_complete() -> None:
    assert bundled_names() == ["chat", "edit", "tools"]
    for name in bundled_names():
        requests = load(name)
        assert len(requests) >= 16
        assert {request.workload for request in requests} == {name}
        prompts = {request.messages[-1]["content"] for request in requests}
        assert len(prompts) == len(requests)


def test_file_folder_and_default_limit(tmp_path: Path) -> None:
    file = write(tmp_path / "one.jsonl", {key: GOOD[key] for key in GOOD if key != "max_tokens"})
    write(tmp_path / "two.jsonl", {**GOOD, "id": "b", "reference": "ignored"})
    assert [request.max_tokens for request in load(file)] == [128]
    assert [request.id for request in load(tmp_path)] == ["a", "b"]


def test_seeded_order_is_stable() -> None:
    first, second = load("chat", seed=1), load("chat", seed=1)
    assert first == second
    assert first != load("chat")
    assert sorted(request.id for request in first) == sorted(r.id for r in load("chat"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": ""}, "'id' must be"),
        ({"kind": 3}, "'kind' must be"),
        ({"max_tokens": 0}, "'max_tokens' must be"),
        ({"max_tokens": True}, "'max_tokens' must be"),
        ({"messages": []}, "'messages' must be"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "needs a 'role'"),
        ({"messages": [{"role": "user"}]}, "needs a 'role'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "must be the user's"),
    ],
)
def test_a_bad_record_names_its_line(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    file = write(tmp_path / "bad.jsonl", GOOD, {**GOOD, **change})
    with pytest.raises(BadWorkload, match=reason) as refusal:
        load(file)
    assert f"{file}:2: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match="give a file, a folder or one of chat, edit, tools"):
        load("no-such")
    with pytest.raises(BadWorkload, match="no prompts"):
        load(write(tmp_path / "empty.jsonl"))
    with pytest.raises(BadWorkload, match="occurs twice"):
        load(write(tmp_path / "twice.jsonl", GOOD, GOOD))
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(BadWorkload, match=r"broken\.jsonl:1"):
        load(tmp_path / "broken.jsonl")
    with pytest.raises(BadWorkload, match="must be a JSON object"):
        load(write(tmp_path / "list.jsonl", [1]))
