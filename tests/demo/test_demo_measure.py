"""The demo's schedule, summary and arguments, without a server of SGLang's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from hybridspec.demo.lineup import ALGORITHMS, Assets, identify, server_args
from hybridspec.demo.measure import Block, block_size
from hybridspec.demo.report import machine, summarise, table
from hybridspec.demo.run import DemoError, _names, _startable
from hybridspec.loadtest.client import Answer, Run
from hybridspec.loadtest.rounds import pick, rotate, schedule


def answer(ids: list[int], steps: int = 0, accepted: int = 0) -> Answer:
    return Answer("", ids, 1, len(ids), 0.1, "length", steps, accepted)


def block(round_: int, name: str, seconds: float, ids: list[int]) -> Block:
    steps = 0 if name == "plain" else 2
    return Block(round_, "edit", name, Run([answer(ids, steps, 3 if steps else 0)], seconds))


def test_all_take_turns_and_the_first_changes() -> None:
    names = ["plain", "ngram", "hybrid"]
    first = list(schedule(["edit", "chat"], names, 0, by_algorithm=False))
    assert first[:3] == [("edit", "plain"), ("edit", "ngram"), ("edit", "hybrid")]
    assert first[3:] == [("chat", "ngram"), ("chat", "hybrid"), ("chat", "plain")]
    last = list(schedule(["edit", "chat"], names, 2, by_algorithm=True))
    assert last[:3] == [("edit", "hybrid"), ("chat", "hybrid"), ("edit", "plain")]
    assert rotate(names, 2) == ["hybrid", "plain", "ngram"]


def test_rounds_have_prompts_of_their_own() -> None:
    prompts = [[index] for index in range(5)]
    assert pick(prompts, 0, 2) == [[0], [1]]
    assert pick(prompts, 1, 2) == [[2], [3]]
    assert pick(prompts, 2, 2) == [[4], [0]]
    assert (block_size(1), block_size(8)) == (2, 8)


def test_summary_takes_medians_of_paired_ratios() -> None:
    blocks = [
        *(block(index, "plain", seconds, [1, 2]) for index, seconds in enumerate((1, 2, 4))),
        *(block(index, "hybrid", seconds, [1, 2]) for index, seconds in enumerate((0.5, 0.5, 4))),
    ]
    cell = summarise(blocks, ["edit"], ["plain", "hybrid"])["edit"]
    assert cell["plain"]["tokens_per_s"] == 1.0
    assert cell["plain"]["speedup"] == 1.0
    assert cell["plain"]["accepted_length"] == 0.0
    assert cell["hybrid"]["rounds"] == [4.0, 4.0, 0.5]
    assert cell["hybrid"]["tokens_per_s"] == 4.0
    assert cell["hybrid"]["speedup"] == 2.0
    assert cell["hybrid"]["accepted_length"] == 1.5
    assert cell["hybrid"]["same_as_plain"] == 1.0


def test_table_shows_every_cell() -> None:
    blocks = [block(0, "plain", 1, [1]), block(0, "hybrid", 0.5, [1])]
    names = ["plain", "hybrid"]
    settings = {"dtype": "bfloat16", "streams": 1, "rounds": 1, "algorithms": names}
    results = {"settings": settings, "workloads": summarise(blocks, ["edit"], names)}
    with (console := Console(width=120)).capture() as shown:
        console.print(table(results))
    assert "2.0  2.00x  1.50" in shown.get()


def test_machine_names_what_was_measured() -> None:
    assert {"processor", "cores", "memory_gib", "sglang", "hybridspec"} <= machine().keys()


def test_arguments_name_the_parts_that_an_algorithm_needs(tmp_path: Path) -> None:
    whole = Assets(tmp_path / "target", tmp_path / "head", tmp_path / "gate")
    plain = server_args(ALGORITHMS["plain"], whole, dtype="float32")
    assert "--speculative-algorithm" not in plain
    hybrid = server_args(ALGORITHMS["hybrid"], whole, dtype="float32")
    assert hybrid[hybrid.index("--hybrid-gate") + 1] == str(tmp_path / "gate")
    no_gate = Assets(tmp_path / "target", tmp_path / "head", None)
    assert "--hybrid-gate" not in server_args(ALGORITHMS["hybrid"], no_gate, dtype="float32")


def test_parts_are_identified_by_content(tmp_path: Path) -> None:
    assert identify(None, "x") == "none"
    (tmp_path / "weights").write_bytes(b"1")
    assert identify(tmp_path, "weights").endswith("(sha256 6b86b273ff34)")


def test_algorithms_by_name() -> None:
    assert _names(None) == ["plain", "ngram", "eagle3", "cache", "threshold", "hybrid"]
    assert _names(["hybrid"]) == ["plain", "hybrid"]
    with pytest.raises(DemoError, match="unknown algorithm 'x'; choose from plain, ngram"):
        _names(["x"])


def test_ngram_is_left_out_where_nothing_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(record=True, width=120)
    monkeypatch.setenv("CXX", sys.executable)
    assert _startable(["plain", "ngram"], False, console) == ["plain", "ngram"]
    assert not console.export_text()

    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert _startable(["plain", "ngram", "eagle3"], False, console) == ["plain", "eagle3"]
    assert console.export_text().startswith("ngram needs a C++ compiler")
    with pytest.raises(DemoError, match=r"install one \(c\+\+ or \$CXX\), or leave ngram out"):
        _startable(["plain", "ngram"], True, console)
