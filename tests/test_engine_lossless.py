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
    place = POLICIES.index(policy)
    engine.start(*((name,) for name in POLICIES[place - place % 2 :][:2]))
    server = engine(policy)
    # Every other prompt alone: eight at a time go through all of them.
    assert generate(server, prompts[::2], TOKENS, concurrency=1) == expected[::2]
    assert generate(server, prompts, TOKENS, concurrency=8) == expected
