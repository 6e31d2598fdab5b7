"""HYBRID never changes the text: token ids equal plain SGLang's, whatever is drafted."""

from __future__ import annotations

import pytest

from engine_servers import EngineServers, generate
from hybridspec.gate.cost import StepTimeModel

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


# By the tree's own score both sources are used whatever the machine's times are.
@pytest.mark.parametrize("policy", ["score", "both", "goodput"])
def test_no_draft_changes_what_is_said(
    engine: EngineServers, prompts: list[list[int]], expected: list[list[int]], policy: str
) -> None:
    server = engine(policy)
    # Some prompts of each kind alone: eight at a time go through all of them.
    assert generate(server, prompts[::3], TOKENS, concurrency=1) == expected[::3]
    assert generate(server, prompts, TOKENS, concurrency=8) == expected


def test_step_times_are_measured_at_the_first_start_and_kept(engine: EngineServers) -> None:
    # Another policy's server was the first of this session, and goodput's the last.
    log = engine("goodput").log_path.read_text()
    kept = list((engine.cache / "step-times").glob("*.json"))
    if not kept:
        assert "Measured again at the next start" in log
        pytest.skip("the machine was busy with something else at every start")
    assert len(kept) == 1
    assert "step times measured" not in log
    times = StepTimeModel.load(kept[0])
    assert times.predict(8, 32, 0, False) > 2 * times.predict(1, 1, 0, False)
