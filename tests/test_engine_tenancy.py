"""What one tenant was told is never offered to another: counted on the server that verifies every
cache draft."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine_servers import EngineServers
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine

TOKENS = 40


def _cache_report(server: Server, prompt: list[int], **tenant: str) -> tuple[list[int], Any]:
    """The answer to a prompt, and what its cache drafts did."""
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        **tenant,
    }
    reply = httpx.post(f"{server.url}/generate", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    (report,) = reply.json()["meta_info"]["hybridspec"]
    return reply.json()["output_ids"], report["cache"]


@pytest.mark.parametrize("kind", ["cache_salt", "extra_key"])
def test_a_planted_continuation_is_offered_under_its_own_salt_alone(
    engine: EngineServers, prompts: list[list[int]], kind: str
) -> None:
    server = engine("both")
    assert httpx.post(f"{server.url}/flush_cache", timeout=60).status_code == 200
    question = prompts[17]
    secret, first = _cache_report(server, question, **{kind: "tenant A"})
    # Asked again under the same salt, nearly all of the answer is a draft that comes true.
    again, repeated = _cache_report(server, question, **{kind: "tenant A"})
    assert again == secret
    assert repeated["accepted"] > first["accepted"] + TOKENS // 3
    # Under others, and under none, exactly what was proposed when nobody had asked before.
    for tenant in ({kind: "tenant B"}, {}, {"cache_salt": "A", "extra_key": "tenant"}):
        told, report = _cache_report(server, question, **tenant)
        assert told == secret  # greedy, so the same; only not by drafts of it
        assert report == first
