"""Three tensor-parallel ranks on a CPU: for correctness, not for speed."""

from __future__ import annotations

import os

import pytest

from engine_metrics import counters
from engine_servers import EngineServers
from hybridspec.loadtest.client import Client

pytestmark = pytest.mark.engine

TOKENS = 24


def test_ranks_say_what_one_says_and_count_once(
    engine: EngineServers,
    prompts: list[list[int]],
    plain_text: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # SGLang wants a group of cores for each rank: two ranks share the last, so one is always slow.
    cores = sorted(os.sched_getaffinity(0))
    binds = [cores[min(rank, len(cores) - 1)] for rank in range(3)]
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, binds)))
    server = engine("goodput", "--tp-size", "3")
    before = counters(server)
    some = [*range(4), 8, 9, 16, 17]
    with Client(server.url) as client:
        answers = client.run([prompts[i] for i in some], max_tokens=TOKENS, streams=4).answers
    after = counters(server)
    assert [answer.output_ids for answer in answers] == [plain_text[i][:TOKENS] for i in some]
    reports = [answer.meta["hybridspec"][0] for answer in answers]
    for source in ("cache", "model"):
        accepted = sum(report[source]["accepted"] for report in reports)
        assert accepted == after["accepted_tokens", source] - before["accepted_tokens", source]
        assert accepted > 0
    assert after["fallbacks",] == 0
    assert "Traceback" not in server.log_text()
