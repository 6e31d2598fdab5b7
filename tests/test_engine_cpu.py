"""The portable CPU runtime under a real server: what plain decoding says stays, whatever happens.

Text is compared as token ids. These tests are about the CPU's kernels and attention backend; they
pass on a GPU too, where those are not in use.
"""

from __future__ import annotations

import json

import pytest

from engine_servers import EngineServers, generate
from hybridspec.loadtest.client import Client

pytestmark = pytest.mark.engine

TOKENS = 24
# Draft trees with branches.
TREE = (
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "8"),
)


@pytest.fixture(scope="module")
def expected(plain_text: list[list[int]]) -> list[list[int]]:
    return [ids[:TOKENS] for ids in plain_text]


@pytest.mark.parametrize("name", ["ngram", "eagle3"])
@pytest.mark.parametrize("streams", [1, 8])
def test_draft_trees_do_not_change_the_text(
    engine: EngineServers,
    prompts: list[list[int]],
    expected: list[list[int]],
    name: str,
    streams: int,
) -> None:
    server = engine(name, *(TREE if name == "eagle3" else ()))
    # Every other prompt alone: eight at a time go through all of them.
    some = slice(None, None, 2 if streams == 1 else 1)
    assert generate(server, prompts[some], TOKENS, concurrency=streams) == expected[some]


@pytest.mark.parametrize("name", ["plain", "ngram", "eagle3"])
def test_a_sampled_request_is_sampled(
    engine: EngineServers, prompts: list[list[int]], name: str
) -> None:
    server = engine(name, *(TREE if name == "eagle3" else ()))
    sampling = {"temperature": 1.5, "top_p": 0.95}
    outputs = generate(server, [prompts[-1]] * 4, TOKENS, 4, sampling)
    assert len({tuple(ids) for ids in outputs}) > 1
    # The most likely token alone remains: the same as greedy.
    nearly_greedy = {"temperature": 1.0, "top_k": 1}
    assert generate(server, [prompts[-1]], TOKENS, 1, nearly_greedy) == generate(
        server, [prompts[-1]], TOKENS
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_grammar_holds_under_speculation(engine: EngineServers, temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "level": {"type": "integer", "maximum": 99}},
        "required": ["ok", "level"],
    }
    sampling = {"json_schema": json.dumps(schema), "temperature": temperature}
    with Client(engine("eagle3", *TREE).url) as client:
        answer = client.generate("Status as JSON:", max_tokens=64, sampling=sampling)
    assert answer.finish_reason == "stop"
    parsed = json.loads(answer.text)
    assert isinstance(parsed["ok"], bool)
    assert isinstance(parsed["level"], int)


def test_log_probabilities_do_not_depend_on_speculation(
    engine: EngineServers, prompts: list[list[int]]
) -> None:
    values = []
    for name, extra in (("plain", ()), ("eagle3", TREE)):
        with Client(engine(name, *extra).url) as client:
            body = {
                "input_ids": prompts[0],
                "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS},
                "return_logprob": True,
            }
            meta = client._post("/generate", body)["meta_info"]
        values.append([(token, prob) for prob, token, _ in meta["output_token_logprobs"]])
    assert [token for token, _ in values[0]] == [token for token, _ in values[1]]
    assert [p for _, p in values[0]] == pytest.approx([p for _, p in values[1]], abs=1e-4)
