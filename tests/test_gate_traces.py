"""Trace files: what is written is read again, public ones too, bad ones are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hybridspec.gate.errors import GateError
from hybridspec.gate.traces import (
    Steps,
    Trace,
    feature_names,
    read_traces,
    trace_sets,
    write_traces,
)


def i32(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def steps(count: int, logged: bool) -> Steps:
    order = np.arange(count)
    return Steps(
        index=order.astype(np.int64) + 2**40,
        row=order.astype(np.int32),
        position=order.astype(np.int32) + 1,
        source=(order % 3).astype(np.int8),
        width=(order + 1).astype(np.int16),
        proposed=order.astype(np.int16),
        accepted=(order // 2).astype(np.int16),
        features=np.array([[1.5, np.nan]] * count, np.float32) if logged else None,
    )


TRACES = [
    Trace("a", "edit", "k", i32(1, 2, 3), i32(4), None, "m", "stop", steps(3, True)),
    Trace("b", "chat", "k", i32(), i32(5, 6), "tenant", "m", "abort", steps(2, False)),
    Trace("c", "chat", "k", i32(7), i32()),
    Trace("d", "chat", "k", i32(8), i32(9), steps=steps(0, False)),
]


def test_round_trip(tmp_path: Path) -> None:
    write_traces(tmp_path / "part-1.parquet", TRACES[:1], ["score", "draft_length"])
    assert write_traces(tmp_path / "part-2.parquet", TRACES[1:]) > 0
    again = read_traces(tmp_path)
    assert feature_names(tmp_path) == ("score", "draft_length")
    for one, two in zip(TRACES, again, strict=True):
        for name in ("id", "workload", "kind", "scope", "model", "finish"):
            assert getattr(one, name) == getattr(two, name)
        assert two.prompt_ids.dtype == two.output_ids.dtype == np.int32
        assert one.prompt_ids.tolist() == two.prompt_ids.tolist()
        assert one.output_ids.tolist() == two.output_ids.tolist()
        assert (one.steps is None) == (two.steps is None)
        if one.steps is None or two.steps is None:
            continue
        for name in ("index", "row", "position", "source", "width", "proposed", "accepted"):
            mine, its = getattr(one.steps, name), getattr(two.steps, name)
            assert mine.dtype == its.dtype
            assert mine.tolist() == its.tolist()
        if one.steps.features is None:
            assert two.steps.features is None
        else:
            np.testing.assert_array_equal(one.steps.features, two.steps.features)


def test_other_tools_can_read_it(tmp_path: Path) -> None:
    write_traces(tmp_path / "all.parquet", TRACES)
    table = parquet.read_table(tmp_path / "all.parquet", columns=["id", "step_accepted"])
    assert table.column("id").to_pylist() == ["a", "b", "c", "d"]
    assert table.column("step_accepted").to_pylist() == [[0, 0, 1], [0, 0], None, []]


def test_sets_are_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_traces(tmp_path / name / "part-0.parquet", TRACES)
        write_traces(tmp_path / name / "part-1.parquet", TRACES)
    (tmp_path / "combined_cnn.jsonl").write_text("")
    found = [tmp_path / "one", tmp_path / "two", tmp_path / "combined_cnn.jsonl"]
    assert trace_sets([tmp_path]) == found
    assert trace_sets([tmp_path / "one"]) == [tmp_path / "one"]
    assert trace_sets([tmp_path / "one" / "part-0.parquet"])[0].name == "part-0.parquet"
    (tmp_path / "empty").mkdir()
    with pytest.raises(GateError, match=r"no \.parquet or \.jsonl file"):
        trace_sets([tmp_path / "empty"])


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "all.parquet").mkdir()
    (tmp_path / "all.parquet" / "in the way").touch()
    with pytest.raises(OSError, match="all"):
        write_traces(tmp_path / "all.parquet", TRACES)
    assert not list(tmp_path.glob("*.part"))


def test_public_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "combined_cnn.jsonl"
    record = {"id": "7", "prompt_token_ids": [1, 2], "generated_token_ids": [3]}
    path.write_text(json.dumps({**record, "acc_ngram": {"acc_len": [1]}}) + "\n\n")
    (read,) = read_traces(path)
    assert read.model_accepted is None
    longer = {"generated_token_ids": [3, 4, 5], "acc_eagle": {"acc_len": [1, 3, 9]}}
    path.write_text(json.dumps({**record, **longer}))
    (known,) = read_traces(path)
    assert known.model_accepted is not None
    assert known.model_accepted.tolist() == [0, 1, 0]  # bonus excluded, cut at the end
    write_traces(tmp_path / "all.parquet", [known])
    again = read_traces(tmp_path / "all.parquet")[0].model_accepted
    assert again is not None
    assert again.tolist() == [0, 1, 0]
    assert (read.id, read.workload, read.prompt_ids.tolist()) == ("7", "cnn", [1, 2])


def test_bad_public_traces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = {"id": "1", "prompt_token_ids": [1], "generated_token_ids": [2]}
    bad = {
        "{": "line 2",
        json.dumps({"id": 1}): "field 'prompt_token_ids' is missing",
        json.dumps({**good, "generated_token_ids": [[1]]}): "whole numbers",
        json.dumps({**good, "generated_token_ids": [2**40]}): "line 2",
    }
    for line, message in bad.items():
        path.write_text(json.dumps(good) + "\n" + line + "\n")
        with pytest.raises(GateError, match=message):
            read_traces(path)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="cannot be read"):
        read_traces(tmp_path / "missing.jsonl")
    with pytest.raises(GateError, match="cannot be read"):
        read_traces(tmp_path / "missing.parquet")
    with pytest.raises(GateError, match=r"holds no \.parquet"):
        read_traces(tmp_path)
    path = tmp_path / "all.parquet"
    path.write_bytes(b"hello")
    with pytest.raises(GateError, match="no Parquet file"):
        read_traces(path)
    parquet.write_table(pyarrow.table({"id": ["a"]}), path)
    with pytest.raises(GateError, match="schema none"):
        read_traces(path)
