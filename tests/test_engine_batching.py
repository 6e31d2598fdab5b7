"""Continuous batching: rows of one step take different sources, while requests come and go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from engine_metrics import counters
from engine_servers import EngineServers, generate
from hybridspec.loadtest.client import Client

pytestmark = pytest.mark.engine


def test_rows_take_different_sources_while_requests_join_and_leave(
    engine: EngineServers, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    # Edits copy their prompt, chat does not; lengths differ so that rows leave one by one.
    which = [*range(4), *range(16, 20), 4, 5, 20, 21]
    chosen = [prompts[index] for index in which]
    lengths = [16 + 4 * place for place in range(len(which))]
    expected = [plain_text[index][:length] for index, length in zip(which, lengths, strict=True)]
    server = engine("score")
    before = counters(server)
    with Client(server.url) as client, ThreadPoolExecutor(len(chosen)) as pool:
        waiting = []
        for prompt, length in zip(chosen, lengths, strict=True):
            waiting.append(pool.submit(client.generate, prompt, max_tokens=length))
            sleep(0.15)
        answers = [future.result() for future in waiting]
    after = counters(server)

    def grew(*key: str) -> float:
        return after[key] - before[key]

    assert [answer.output_ids for answer in answers] == expected
    assert grew("mixed_steps") > 0
    assert grew("rows", "cache") > 0
    assert grew("rows", "model") > 0
    # Fewer steps than rows: requests shared steps. The answers' own steps add up to the rows.
    steps = grew("steps")
    rows = grew("rows")
    assert rows > 1.5 * steps
    assert rows == sum(answer.verify_steps for answer in answers)
    assert after["fallbacks",] == before["fallbacks",]


def test_width_follows_the_longest_draft(engine: EngineServers, prompts: list[list[int]]) -> None:
    server = engine("both")
    before = counters(server)
    generate(server, prompts[:8], 32, concurrency=8)
    after = counters(server)
    used = [
        width
        for width in ("1", "2", "5", "8", "16", "32")
        if after["steps", width] > before["steps", width]
    ]
    assert len(used) >= 2


def test_counters_agree_with_what_requests_report(
    engine: EngineServers, prompts: list[list[int]]
) -> None:
    server = engine("goodput")
    before = counters(server)
    with Client(server.url) as client:
        answers = client.run(prompts[:6], max_tokens=32, streams=3).answers
    after = counters(server)
    accepted = after["accepted_tokens",] - before["accepted_tokens",]
    proposed = after["draft_tokens",] - before["draft_tokens",]
    assert accepted == sum(answer.accepted for answer in answers)
    assert 0 < accepted <= proposed
