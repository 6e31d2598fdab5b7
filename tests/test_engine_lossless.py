"""HYBRID never changes the text: token ids equal plain SGLang's, whatever is drafted."""

from __future__ import annotations

import pytest

from engine_servers import POLICIES, EngineServers, generate

pytestmark = pytest.mark.engine

TOKENS = 16


@pytest.fixture(scope="module")
def expected(plain_text: list[list[int]]) -> list[list[int]]:
    assert len(plain_text) >= 24
    return [ids[:TOKENS] for ids in plain_text]


def test_plain_decoding_is_the_same_one_by_one(
    engine: EngineServers, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    assert generate(engine("plain"), prompts, TOKENS, concurrency=1) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_says_what_plain_decoding_says(
    engine: EngineServers, prompts: list[list[int]], expected: list[list[int]], policy: str
) -> None:
    server = engine(policy)
    assert generate(server, prompts, TOKENS, concurrency=1) == expected
    assert generate(server, prompts, TOKENS, concurrency=8) == expected
