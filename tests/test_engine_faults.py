"""Parts that fail, are missing or are behind never fail or change a request.

One server has it all: the suffix cache raises now and then, there is no gate, and the draft head is
put off as soon as it is not used.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_metrics import counters
from engine_servers import EngineServers, generate
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(engine: EngineServers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    path = tmp_path_factory.mktemp("config") / "hybrid.yaml"
    path.write_text("fault_every: 5\ndraft_extend_after: 1\n")
    return engine("gateless", "--hybrid-config", str(path))


@pytest.fixture(scope="module")
def grew(
    server: Server, prompts: list[list[int]], plain_text: list[list[int]]
) -> Callable[..., float]:
    """How far counters grew while every third prompt was answered, as plain decoding does."""
    before = counters(server)
    expected = [ids[:48] for ids in plain_text[::3]]
    assert generate(server, prompts[::3], 48, concurrency=4) == expected
    after = counters(server)
    return lambda *key: after[key] - before[key]


def test_requests_go_on_when_the_suffix_cache_raises(
    server: Server, grew: Callable[..., float]
) -> None:
    assert grew("fallbacks", "suffix_cache") > 0
    assert grew("fallbacks", "suffix_cache") == grew("fallbacks")
    assert grew("accepted_tokens", "cache") > 0
    assert server.log_text().count("hybridspec: suffix_cache failed") == 1


def test_the_draft_head_is_behind_now_and_then(grew: Callable[..., float]) -> None:
    assert grew("draft_extends", "later") > 0
    assert grew("draft_extends", "now") > 0
    assert grew("accepted_tokens", "model") > 0
