"""The step planner over requests that only look like SGLang's: drafts, failures, leaks."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from gate_folders import constant_model, gate_folder
from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang import requests as followed
from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.adapters.sglang.planner import StepPlanner
from hybridspec.adapters.sglang.step_plan import StepPlan
from hybridspec.gate.joint import MOST_ROWS, JointAcceptance

PHRASE = list(range(100, 120))


@dataclass
class Reason:
    kind: str

    def to_json(self) -> dict[str, str]:
        return {"type": self.kind}


@dataclass
class Sampling:
    max_new_tokens: int | None = None


@dataclass
class Request:
    """What the planner reads of a request."""

    rid: str
    origin_input_ids: list[int]
    output_ids: Any = field(default_factory=lambda: array("q", [1]))
    finished_reason: Reason | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    finished_len: int | None = None
    sampling_params: Sampling = field(default_factory=Sampling)
    customized_info: dict[str, Any] | None = None

    @property
    def output_ids_through_stop(self) -> Any:
        return self.output_ids[: self.finished_len]


class Bench:
    """A planner and its counters."""

    def __init__(self, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.planner = StepPlanner(
            HybridConfig(**settings),
            model_steps=4,
            device="cpu",
            times_steps=False,
            registry=self.registry,
        )

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"hybridspec_{name}", labels) or 0.0

    def step(self, *requests: Request, truth: dict[str, list[int]] | None = None) -> StepPlan:
        """Plan a step and settle it: each row accepts what agrees with its true continuation."""
        plan = self.planner.plan(requests)
        accepted = []
        for row, request in enumerate(requests):
            true = (truth or {}).get(request.rid, [7])
            said = plan.tokens[row, : plan.length[row]].tolist()
            if plan.source[row] != Source.CACHE:
                said = []
            count = 0
            while count < min(len(said), len(true) - 1) and said[count] == true[count]:
                count += 1
            accepted.append(count)
            request.output_ids.extend(true[: count + 1])
        self.planner.settle(accepted)
        return plan


def repeating(rid: str = "a", **changes: Any) -> Request:
    """A request that has begun to repeat its prompt."""
    return Request(rid, [*PHRASE, 5, 6], array("q", PHRASE[:6]), **changes)


def test_a_repeated_prompt_is_drafted_from_the_cache() -> None:
    plan = Bench(policy="cache").step(repeating())
    assert plan.source.tolist() == [Source.CACHE]
    assert (
        plan.tokens[0, : plan.length[0]].tolist()
        == [*PHRASE, 5, 6, *PHRASE][6 : 6 + plan.length[0]]
    )
    assert plan.width > plan.length[0]


@pytest.mark.parametrize(("left", "drafted"), [(8, 7), (2, 1), (1, 0), (0, 0)])
def test_drafts_end_at_a_requests_token_limit(left: int, drafted: int) -> None:
    limited = repeating(sampling_params=Sampling(6 + left))
    assert Bench(policy="cache").step(limited).length.tolist() == [drafted]
    plan = Bench(policy="goodput").step(limited)
    assert plan.length[0] <= drafted
    assert drafted or plan.width == 1


def test_rows_without_a_draft_take_the_model_and_rows_with_one_the_cache() -> None:
    bench = Bench(policy="score")
    plan = bench.step(repeating(), Request("b", [1, 2, 3]))
    assert plan.source.tolist() == [Source.CACHE, Source.MODEL]
    assert plan.model_forward
    assert plan.model_length == 4
    assert bench.count("mixed_steps_total") == 1


def test_accepted_tokens_extend_the_cache_and_are_counted() -> None:
    bench = Bench(policy="cache")
    request = repeating()
    first = bench.step(request, truth={"a": PHRASE[6:14]})
    taken = min(int(first.length[0]), 7)
    assert bench.count("accepted_tokens_total", source="cache") == taken
    second = bench.step(request)
    start = 6 + taken + 1
    assert second.tokens[0, 0] == PHRASE[start]


def test_finished_responses_are_shared_and_aborted_ones_are_not() -> None:
    for reason, shared in (("length", True), ("abort", False)):
        bench = Bench(policy="cache")
        request = Request("a", [1, 2], array("q", PHRASE))
        bench.step(request)
        request.finished_reason = Reason(reason)
        bench.planner.finish("a")
        plan = bench.step(Request("b", [3, 4], array("q", PHRASE[:8])))
        assert (plan.source[0] == Source.CACHE) == shared


@pytest.mark.parametrize("other", [{"cache_salt": "other"}, {"extra_key": "adapter"}])
def test_other_scopes_are_never_offered_a_response(other: dict[str, str]) -> None:
    bench = Bench(policy="cache")
    bench.step(Request("a", [1, 2], array("q", PHRASE)))
    bench.planner.finish("a")
    stranger = Request("b", [3, 4], array("q", PHRASE[:8]))
    for name, value in other.items():
        setattr(stranger, name, value)
    plan = bench.step(stranger)
    assert plan.source[0] == Source.NONE


@pytest.mark.parametrize("kind", ["request", "global"])
def test_scopes_can_be_narrower_and_wider(kind: str) -> None:
    bench = Bench(policy="cache", suffix_scope=kind)
    bench.step(Request("a", [1, 2], array("q", PHRASE), cache_salt="one"))
    bench.planner.finish("a")
    other = Request("b", [3, 4], array("q", PHRASE[:8]), cache_salt="two")
    assert (bench.step(other).source[0] == Source.CACHE) == (kind == "global")
    bench.planner.finish("b")
    assert (bench.planner._cache.stats.bytes > 0) == (kind == "global")


def test_a_finished_request_carries_its_numbers() -> None:
    bench = Bench(policy="cache")
    request = repeating()
    plan = bench.step(request, truth={"a": PHRASE[6:10]})
    bench.planner.finish("a")
    cache = {"steps": 1, "proposed": int(plan.length[0]), "accepted": 3}
    assert request.customized_info is not None
    (report,) = request.customized_info["hybridspec"]
    assert report["cache"] == cache
    assert report["model"] == {"steps": 0, "proposed": 0, "accepted": 0}
    assert report["none"] == {"steps": 0}


def test_the_branch_that_won_is_credited() -> None:
    bench = Bench(policy="both")
    bench.planner.merge()
    assert bench.count("merges") == 1
    requests = [repeating("a"), repeating("b"), repeating("c")]
    plan = bench.planner.plan(requests, np.array([9, 9, 9]))  # the cache says PHRASE[6]
    assert plan.branch is not None
    assert plan.source.tolist() == [Source.CACHE] * 3
    assert plan.branch.tolist() == [4] * 3
    requests[0].output_ids.extend([*PHRASE[6:9], 50])
    requests[1].output_ids.extend([9, 8, 50])
    requests[2].output_ids.extend([50])
    bench.planner.settle([3, 2, 0], np.array([[0, 1, 0], [0, 2, 0]], np.int32))
    for won in ("cache", "model", "none"):
        assert bench.count("merged_rows_total", won=won) == 1
    assert bench.count("accepted_tokens_total", source="cache") == 3
    assert bench.count("accepted_tokens_total", source="model") == 2
    assert bench.count("draft_tokens_total", source="cache") == plan.length.sum()
    assert bench.count("draft_tokens_total", source="model") == 12
    for request in requests:
        bench.planner.finish(request.rid)
    first, second, third = ((each.customized_info or {})["hybridspec"][0] for each in requests)
    long = int(plan.length[0])
    assert first["cache"] == {"steps": 1, "proposed": long, "accepted": 3}
    assert first["model"] == {"steps": 0, "proposed": 4, "accepted": 0}
    assert second["cache"] == {"steps": 0, "proposed": long, "accepted": 0}
    assert second["model"] == {"steps": 1, "proposed": 4, "accepted": 2}
    assert third["cache"]["accepted"] == third["model"]["accepted"] == 0


def test_rows_are_chains_until_they_may_merge() -> None:
    for policy in ("both", "goodput"):
        bench = Bench(policy=policy, profile="h100")
        assert bench.planner.plan([repeating()], np.array([9])).branch is None
        assert bench.count("merges") == 0


def test_large_batches_are_chains() -> None:
    bench = Bench(policy="both")
    bench.planner.merge()
    few = [repeating(f"{number}") for number in range(MOST_ROWS)]
    plan = bench.step(*few)
    assert plan.branch is not None
    assert plan.branch.all()
    assert bench.step(*few, repeating("one more")).branch is None


def test_a_comparison_that_fails_leaves_rows_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(policy="both")
    bench.planner.merge()

    def fail(*args: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(JointAcceptance, "join", fail)
    assert bench.step(repeating()).branch is None
    assert bench.count("fallbacks_total", part="joint") == 1


def test_a_reused_id_is_a_new_request() -> None:
    bench = Bench(policy="cache")
    bench.step(repeating())
    plan = bench.step(Request("a", [3, 4], array("q", [9])))
    assert plan.source[0] == Source.NONE


def test_a_failing_cache_is_counted_and_the_request_goes_on() -> None:
    bench = Bench(policy="cache", fault_every=2)
    request = repeating()
    plans = [bench.step(request, truth={"a": [PHRASE[6 + step], 0]}) for step in range(6)]
    assert bench.count("fallbacks_total", part="suffix_cache") == 3
    # After each failure the context is taken in anew, so the next step drafts rightly again.
    assert plans[2].tokens[0, 0] == PHRASE[8]
    assert plans[4].tokens[0, 0] == PHRASE[10]


def test_flush_forgets_responses() -> None:
    bench = Bench(policy="cache")
    bench.step(Request("a", [1, 2], array("q", PHRASE)))
    bench.planner.finish("a")
    bench.planner.flush()
    assert bench.step(Request("b", [3, 4], array("q", PHRASE[:8]))).source[0] == Source.NONE


def test_an_idle_server_that_forgets_holds_nothing() -> None:
    bench = Bench(policy="cache")
    bench.step(Request("waits", [1, 2], array("q", PHRASE)))  # aborted later, while it waits
    assert bench.count("suffix_cache_requests") == 1
    bench.planner.clear()
    assert bench.count("suffix_cache_requests") == bench.count("suffix_cache_bytes") == 0
    assert len(bench.planner._requests) == 0


def test_more_requests_than_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(policy="goodput")
    crowd = [repeating(str(number)) for number in range(200)]
    for _ in range(3):
        assert len(bench.step(*crowd).source) == 200
    assert bench.count("fallbacks_total", part="gate") == 0


def test_vanished_requests_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "SWEEP_EVERY", 4)
    monkeypatch.setattr(followed, "STALE_AFTER", 8)
    bench = Bench(policy="none")
    bench.step(repeating("lost"))
    stays = repeating("stays")
    for _ in range(20):
        bench.step(stays)
    bench.step(repeating("new"))
    assert bench.count("suffix_cache_requests") == 2


def test_the_models_acceptance_is_learned_while_it_is_not_used() -> None:
    bench = Bench(policy="none")
    request = repeating()
    seen = []
    for token in range(60):
        plan = bench.planner.plan([request], np.array([200 + token]))
        assert plan.source[0] == Source.NONE
        seen.append(float(bench.planner._acceptance.survival(np.array([0]))[0, 0]))
        request.output_ids.append(200 + token)
        bench.planner.settle([0])
    assert seen[-1] > 0.85 > seen[0]


def test_a_gate_is_replaced_between_two_steps(tmp_path: Path) -> None:
    folder = gate_folder(tmp_path / "gate")
    bench = Bench(policy="threshold", tau=1.0, gate=str(folder), gate_poll_s=0.01)
    request = repeating()
    assert bench.step(request).source.tolist() == [Source.CACHE]
    before = bench.count("gate_fingerprint")
    gate_folder(folder, constant_model((0.1, 0.0, 0.0, 0.0)))
    deadline = time.monotonic() + 10.0
    while not bench.count("gate_swaps_total") and time.monotonic() < deadline:
        bench.step(request)
    assert bench.count("gate_swaps_total") == 1
    assert bench.count("gate_fingerprint") not in (0.0, before)
    bench.step(request)  # the draft head was behind
    plan = bench.step(request)
    assert plan.source.tolist() == [Source.MODEL]
    (folder / "gate.onnx").write_bytes(b"hello")
    while not bench.count("gate_refusals_total") and time.monotonic() < deadline:
        assert bench.step(request).source.tolist() == [Source.MODEL]
    assert bench.count("gate_refusals_total") == 1


def test_what_lies_beyond_a_stop_is_not_shared() -> None:
    bench = Bench(policy="cache")
    first = Request("a", [1, 2, 3], array("q", [50, 51, 52]))
    bench.step(first, truth={"a": [53]})
    # The last step's accepted run went past the end token 54.
    first.output_ids.extend([54, 90, 91, 92])
    first.finished_len = 5
    first.finished_reason = Reason("stop")
    bench.planner.finish("a")
    plan = bench.step(Request("b", [4, 5], array("q", [50, 51, 52])))
    assert plan.tokens[0, : plan.length[0]].tolist() == [53, 54]
