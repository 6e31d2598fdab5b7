"""Overlap scheduling: steps are planned before the results of the one before are taken in.

The order in which a scheduler launches batches and takes results in is played with requests that
only look like SGLang's; the relay and the planner are the real ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import torch

from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang.requests import Followed, Relayed
from hybridspec.adapters.sglang.token_relay import TokenRelay
from test_sglang_planner import Bench, Request

Seen = dict[tuple[str, int], tuple[int, list[int]]]
"""By request and output tokens so far: what its row proposed."""


class Served:
    """A request with the answer that the target would give."""

    def __init__(self, rid: str, prompt: list[int], answer: list[int]) -> None:
        self.request = Request(rid, prompt, array("q"))
        self.answer, self.position = answer, 0

    @property
    def done(self) -> bool:
        return self.position >= len(self.answer)

    def produce(self, drafted: list[int]) -> list[int]:
        """What verification of ``drafted`` gives: agreeing tokens and one of the target's."""
        ahead = [*self.answer[self.position :], *range(10_000, 10_100)]
        count = 0
        while count < len(drafted) and drafted[count] == ahead[count]:
            count += 1
        self.position += count + 1
        return ahead[: count + 1]


def test_what_came_of_branches_is_carried_along() -> None:
    relay = TokenRelay("cpu")
    requests = [Request("a", [1]), Request("b", [1])]
    branches = torch.tensor([[0, 1], [2, 0]])
    relay.launched(requests, torch.arange(8), torch.tensor([3, 2]), branches)
    found = relay.take()
    assert found is not None
    assert found.accepted == [2, 1]
    assert found.branches is not None
    assert found.branches.tolist() == branches.tolist()
    assert found.tokens["b"].tokens.tolist() == [4, 5]
    assert relay.take() is None
    relay.launched(requests, torch.arange(8), torch.tensor([3, 2]))
    chains = relay.take()
    assert chains is not None
    assert chains.branches is None


def work() -> list[Served]:
    rng = np.random.default_rng(0)
    phrases = [rng.integers(10, 60, 20).tolist() for _ in range(4)]
    return [
        Served(
            f"r{number}",
            [1, *phrases[number % 4], *phrases[(number + 1) % 4]],
            [token for turn in range(5) for token in phrases[(number + turn) % 4][: 12 + turn]],
        )
        for number in range(8)
    ]


def serve(overlaps: bool) -> tuple[Seen, Bench]:
    """Admit a request every third step; each row's draft depends on that row alone."""
    bench = Bench(policy="cache")
    planner, relay = bench.planner, TokenRelay("cpu")
    waiting, running, seen = work(), list[Served](), Seen()
    later: list[Callable[[], None]] = []  # results that the scheduler has not taken in
    skip = 0

    def launched(rows: list[Served], made: list[list[int]], decoded: bool) -> None:
        width = max(map(len, made))
        flat = torch.tensor([[*each, *[0] * (width - len(each))] for each in made]).flatten()
        lengths = torch.tensor([len(each) for each in made]) if decoded else None
        if overlaps:
            relay.launched([row.request for row in rows], flat, lengths)

        def take_in() -> None:
            nonlocal skip
            if decoded and skip:
                skip -= 1
            elif decoded:
                planner.settle([len(each) - 1 for each in made])
            for row, tokens in zip(rows, made, strict=True):
                row.request.output_ids.extend(tokens)
                if row.done and row in running:
                    running.remove(row)
                    planner.finish(row.request.rid)

        later.append(take_in)
        while len(later) > overlaps:
            later.pop(0)()

    step = 0
    while waiting or running:
        step += 1
        if waiting and step % 3 == 1:
            fresh = waiting.pop(0)
            running.append(fresh)
            launched([fresh], [fresh.produce([])], decoded=False)
            continue
        rows = list(running)
        newest = relay.take()
        if newest is not None and newest.accepted is not None:
            skip += planner.settle(newest.accepted)
        places = [(row.request.rid, row.position) for row in rows]
        plan = planner.plan(
            [row.request for row in rows], relayed=newest.tokens if newest is not None else {}
        )
        drafted = [plan.tokens[at, : plan.length[at]].tolist() for at in range(len(rows))]
        drafted = [
            draft if plan.source[at] == Source.CACHE else [] for at, draft in enumerate(drafted)
        ]
        for place, source, draft in zip(places, plan.source.tolist(), drafted, strict=True):
            seen[place] = source, draft
        made = [row.produce(draft) for row, draft in zip(rows, drafted, strict=True)]
        launched(rows, made, decoded=True)
    for rest in later:
        rest()
    return seen, bench


def test_results_one_step_late_give_the_same_drafts() -> None:
    at_once, bench = serve(overlaps=False)
    late, late_bench = serve(overlaps=True)
    # Where a request has ended unseen, one more step of it is launched.
    ends = {row.request.rid: len(row.answer) for row in work()}
    missing = [place for place in at_once if place not in late]
    extra = [place for place in late if place not in at_once]
    assert not missing
    assert all(position >= ends[rid] for rid, position in extra)
    drafts = [draft for _, draft in at_once.values() if draft]
    assert len(drafts) > 20
    different = [place for place in at_once if at_once[place] != late[place]]
    assert not different
    accepted = bench.count("accepted_tokens_total", source="cache")
    assert accepted > 100
    assert late_bench.count("accepted_tokens_total", source="cache") >= accepted


def planner_row(output: list[int], taken: int) -> Followed:
    return Followed(Request("a", [5, 6], array("q", output)), 0, taken, 0, 100)


def test_what_the_scheduler_has_taken_in_goes_before_the_relay() -> None:
    relayed = Relayed(np.array([8, 9], np.int32), 1)
    row = planner_row([7], taken=1)
    assert row.new_tokens(relayed).tolist() == [8, 9]
    assert (row.taken, row.newest_token()) == (3, 9)
    assert row.output().tolist() == [7, 8, 9]
    row.request.output_ids.extend([8, 9, 4])
    assert row.new_tokens(relayed).tolist() == [4]
    assert row.output().tolist() == [7, 8, 9, 4]
    assert planner_row([], taken=0).newest_token() == 6


def test_the_relay_holds_the_newest_batch_once() -> None:
    relay = TokenRelay("cpu")
    assert relay.take() is None
    one, two = Request("a", [1], array("q", [3])), Request("b", [1], array("q"))
    relay.launched([one, two], torch.tensor([4, 5]), None)
    relay.launched([one, two], torch.tensor([1, 2, 0, 9, 0, 0]), torch.tensor([2, 1]))
    found = relay.take()
    assert found is not None
    assert found.accepted == [1, 0]
    assert {rid: (row.tokens.tolist(), row.held) for rid, row in found.tokens.items()} == {
        "a": ([1, 2], 1),
        "b": ([9], 0),
    }
    assert relay.take() is None
    relay.launched([two], torch.tensor([4]), None)
    relay.forget()
    assert relay.take() is None
