"""HYBRID never changes the text: token ids equal plain SGLang's, whatever is drafted."""

from __future__ import annotations

import pytest

from engine_servers import POLICIES, EngineServers, generate

pytestmark = pytest.mark.engine

TOKENS = 32


@pytest.fixture(scope="module")
def expected(engine: EngineServers, prompts: list[list[int]]) -> list[list[int]]:
    """Plain decoding's token ids of every prompt, one stream."""
    assert len(prompts) >= 24
    return generate(engine("plain"), prompts, TOKENS)


def test_plain_decoding_is_the_same_with_eight_streams(
    engine: EngineServers, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    assert generate(engine("plain"), prompts, TOKENS, concurrency=8) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_says_what_plain_decoding_says(
    engine: EngineServers, prompts: list[list[int]], expected: list[list[int]], policy: str
) -> None:
    server = engine(policy)
    assert generate(server, prompts, TOKENS, concurrency=1) == expected
    assert generate(server, prompts, TOKENS, concurrency=8) == expected
