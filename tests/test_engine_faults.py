"""Parts of ours that fail while serving never fail or change a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_metrics import counters
from engine_servers import EngineServers, generate

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "hybrid.yaml"
    path.write_text("fault_every: 5\n")
    return str(path)


def test_requests_go_on_when_the_suffix_cache_raises(
    engine: EngineServers, prompts: list[list[int]], plain_text: list[list[int]], faulty: str
) -> None:
    chosen = [*prompts[:4], *prompts[16:20]]
    expected = [ids[:32] for ids in (*plain_text[:4], *plain_text[16:20])]
    server = engine("cache", "--hybrid-config", faulty)
    before = counters(server)
    assert generate(server, chosen, 32, concurrency=4) == expected
    after = counters(server)
    assert after["fallbacks", "suffix_cache"] > before["fallbacks", "suffix_cache"]
    assert after["accepted_tokens", "cache"] > before["accepted_tokens", "cache"]
    log = Path(server.log_path).read_text()
    assert log.count("hybridspec: suffix_cache failed") == 1


def test_without_a_gate_and_with_the_draft_head_behind_now_and_then(
    engine: EngineServers,
    prompts: list[list[int]],
    plain_text: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("config") / "hybrid.yaml"
    path.write_text("draft_extend_after: 1\n")
    server = engine("gateless", "--hybrid-config", str(path))
    before = counters(server)
    expected = [ids[:48] for ids in plain_text[::3]]
    assert generate(server, prompts[::3], 48, concurrency=4) == expected
    after = counters(server)

    def grew(*key: str) -> float:
        return after[key] - before[key]

    assert grew("draft_extends", "later") > 0
    assert grew("draft_extends", "now") > 0
    assert grew("accepted_tokens", "model") > 0
    assert after["fallbacks",] == before["fallbacks",]
