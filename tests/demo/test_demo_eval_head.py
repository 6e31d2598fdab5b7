"""The arithmetic of the head's evaluation; the servers are the engine tests' business."""

from __future__ import annotations

import pytest

from hybridspec.demo.eagle3.corpus import plan_prompts
from hybridspec.demo.eval_head import KINDS, PLAIN, _figures, _reached, _schedule, held_out_prompts
from hybridspec.loadtest.client import Answer, Run


def answer(histogram: list[int], tokens: int = 10) -> Answer:
    steps, accepted = sum(histogram), sum(k * n for k, n in enumerate(histogram))
    meta = {"spec_correct_drafts_histogram": histogram} if histogram else {}
    return Answer("", [], 1, tokens, 1.0, "length", steps, accepted, meta)


def test_reached_counts_steps_with_at_least_so_many() -> None:
    assert _reached([answer([2, 1, 1]), answer([4, 0, 0, 2])]) == [0.4, 0.3, 0.2]
    assert _reached([answer([])]) == []


def test_figures_compare_block_by_block() -> None:
    plain = [Run([answer([])], 2.0), Run([answer([])], 4.0)]
    own = [Run([answer([5, 5])], 1.0), Run([answer([0, 10])], 1.0)]
    seen = _figures(own, plain)
    assert seen["speedup"] == 3.0  # the median of 2 and 4
    assert seen["accepted_length"] == 0.75
    assert seen["reached"] == [0.75]


def test_servers_take_turns_on_the_same_prompts() -> None:
    prompts = {"edit": [[1], [2], [3]], "chat": [[4]]}
    turns = _schedule(prompts, [PLAIN, "4 steps"], by_server=False)
    assert [(kind, name) for kind, name, _ in turns] == [
        *(("edit", PLAIN), ("edit", "4 steps")),
        *(("edit", "4 steps"), ("edit", PLAIN)),
        *(("chat", PLAIN), ("chat", "4 steps")),
    ]
    assert turns[0][2] == turns[1][2] == [[1], [2]]
    apart = _schedule(prompts, [PLAIN, "4 steps"], by_server=True)
    assert [name for _, name, _ in apart] == [PLAIN] * 3 + ["4 steps"] * 3


@pytest.mark.slow
def test_only_held_out_prompts_are_asked() -> None:
    asked = held_out_prompts(4)
    trained = {entry.text for entry in plan_prompts(4400, seed=0) if not entry.held_out}
    for kind in KINDS:
        assert len(asked[kind]) == 4
        assert not trained & set(asked[kind])
