"""Overlap scheduling on a CPU: SGLang's own overlapped loop plans each step before it has taken the
results of the one before in. Same text, and the counters still add up."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import pytest

from engine_metrics import counters, metric
from engine_servers import EngineServers, generate, post_all
from hybridspec.loadtest.client import Client
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    config = tmp_path_factory.mktemp("overlap") / "hybrid.json"
    config.write_text(json.dumps({"overlap": "always"}))
    return "--hybrid-config", str(config)


@pytest.fixture
def server(engine: EngineServers, args: tuple[str, ...]) -> Server:
    return engine("score", *args)


def test_text_is_plain_decodings_while_requests_join_and_leave(
    server: Server, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    with Client(server.url) as client:
        assert client.server_info()["disable_overlap_schedule"] is False
    before = counters(server)
    lengths = [16 + 2 * place for place in range(len(prompts))]
    with Client(server.url) as client, ThreadPoolExecutor(12) as pool:
        waiting = []
        for prompt, length in zip(prompts, lengths, strict=True):
            waiting.append(pool.submit(client.generate, prompt, max_tokens=length))
            sleep(0.1)
        answers = [future.result() for future in waiting]
    for answer, text, length in zip(answers, plain_text, lengths, strict=True):
        assert answer.output_ids == text[:length]
    after = counters(server)
    assert after["accepted_tokens", "cache"] > before["accepted_tokens", "cache"]
    assert after["accepted_tokens", "model"] > before["accepted_tokens", "model"]
    assert after["fallbacks",] == before["fallbacks",]


def test_drafts_are_as_good_as_without_overlap(
    engine: EngineServers, args: tuple[str, ...], prompts: list[list[int]]
) -> None:
    """One request at a time: the same steps, but for the one that is launched after its end."""
    told = []
    for extra in ((), args):
        server = engine("score", *extra)
        with Client(server.url) as client:
            client.flush_cache()
            run = client.run(prompts[:6], max_tokens=48, streams=1)
        told.append([answer.meta["hybridspec"] for answer in run.answers])
    assert told[0] == told[1]


def _told(content: Any) -> list[tuple[Any, ...]]:
    choices = content if isinstance(content, list) else [content]
    return [(each["output_ids"], each["meta_info"]["finish_reason"]) for each in choices]


def test_stops_grammars_and_samples_under_overlap(
    engine: EngineServers,
    args: tuple[str, ...],
    prompts: list[list[int]],
    plain_text: list[list[int]],
) -> None:
    greedy = {"temperature": 0, "max_new_tokens": 40}
    bodies = [
        {"input_ids": prompts[1], "sampling_params": {**greedy, "stop": ["return"]}},
        {
            "input_ids": prompts[2],
            "sampling_params": {**greedy, "stop_token_ids": [plain_text[2][9]]},
        },
        {"input_ids": prompts[9], "sampling_params": {**greedy, "regex": "(yes|no|maybe){1,3}"}},
        {"input_ids": prompts[3], "sampling_params": {**greedy, "n": 2}},
    ]
    expected = [reply.json() for reply in post_all(engine("plain"), bodies)]
    server = engine("score", *args)
    found = [reply.json() for reply in post_all(server, bodies)]
    assert [_told(each) for each in found] == [_told(each) for each in expected]
    sampled = post_all(
        server, [{"input_ids": prompts[4], "sampling_params": {"max_new_tokens": 24}}] * 4
    )
    assert all(reply.status_code == 200 for reply in sampled)
    # Nothing is left behind: the next answers are right, and the pool is as it was.
    assert generate(server, prompts[:4], 16, concurrency=4) == [ids[:16] for ids in plain_text[:4]]
    assert metric(server, "hybridspec_suffix_cache_requests") == 0
