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


def test_hybrid_serves_without_a_gate(
    engine: EngineServers, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    expected = [ids[:32] for ids in plain_text[::6]]
    assert generate(engine("gateless"), prompts[::6], 32, concurrency=2) == expected
