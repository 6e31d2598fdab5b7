"""Sampled and constrained answers under drafts: the target's distribution, the grammar's language.

On the policy that verifies every cache draft, good or bad, and in small batches EAGLE3's beside it,
so that drafts that sampling rejects or a grammar forbids are common.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import httpx
import pytest
from scipy.stats import chi2_contingency

from engine_servers import EngineServers, post_all
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine

# Repeats itself, so that there are drafts, and not quite, so that the target is not certain.
COLOURS = "red green blue red green teal red green blue red green"
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "top-k": {"temperature": 2.0, "top_k": 4},
    "min-p": {"temperature": 1.5, "min_p": 0.15},
}
SAMPLES, TOKENS = 256, 3
# One in ten thousand right samplers fails: four settings, so once in 2,500 runs.
LEAST_P = 1e-4

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        # An integer without end would run into the token limit.
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
# The prompt repeats what the grammars forbid.
JSON_LIKE = '{"name": "pump", "count": "seven", "extra": [1, 2]}\n' * 4
EBNF = 'root ::= "go " ("left" | "right") " " [0-9] [0-9] " steps"'
REGEX = r"id-[0-9]{4}(-[a-z]{3}){2}"


def _ask(server: Server, bodies: list[dict[str, Any]], streams: int = 8) -> list[dict[str, Any]]:
    replies = post_all(server, bodies, streams=streams)
    assert all(reply.status_code == 200 for reply in replies), [reply.text for reply in replies]
    return [reply.json() for reply in replies]


def _continuations(server: Server, sampling: dict[str, Any]) -> list[tuple[int, ...]]:
    """What follows the first token, which prefill samples, in every answer."""
    body = {
        "text": COLOURS,
        "sampling_params": {**sampling, "max_new_tokens": TOKENS, "ignore_eos": True},
    }
    answers = _ask(server, [body] * SAMPLES)
    return [tuple(answer["output_ids"][1:]) for answer in answers]


@pytest.mark.parametrize("setting", SETTINGS)
def test_samples_are_distributed_as_plain_decodings(engine: EngineServers, setting: str) -> None:
    sampling = SETTINGS[setting]
    plain = _continuations(engine("plain"), sampling)
    ours = _continuations(engine("both"), sampling)
    for length in (1, 2):
        counts = [Counter(each[:length] for each in seen) for seen in (plain, ours)]
        common = [outcome for outcome, count in (counts[0] + counts[1]).items() if count >= 12]
        assert len(common) > 1, "the target is too certain to tell distributions apart"
        table = [[count[outcome] for outcome in common] for count in counts]
        rest = [SAMPLES - sum(line) for line in table]
        if any(rest):
            table = [[*line, others] for line, others in zip(table, rest, strict=True)]
        assert chi2_contingency(table).pvalue > LEAST_P, (setting, common, table)


def test_drafts_were_verified_for_them(engine: EngineServers) -> None:
    body = {"text": COLOURS, "sampling_params": {**SETTINGS["top-k"], "max_new_tokens": 24}}
    reports = [answer["meta_info"]["hybridspec"][0] for answer in _ask(engine("both"), [body] * 8)]
    assert sum(report["cache"]["proposed"] for report in reports) > 20
    assert sum(report["cache"]["accepted"] for report in reports) > 0


@pytest.mark.parametrize("streams", [8, 16])
def test_grammars_hold_against_drafts_that_break_them(engine: EngineServers, streams: int) -> None:
    bodies: list[dict[str, Any]] = []
    for number in range(16):
        temperature = 0.0 if number % 2 else 0.9
        grammar = ({"json_schema": json.dumps(SCHEMA)}, {"regex": REGEX}, {"ebnf": EBNF})[
            number % 3
        ]
        sampling = {"temperature": temperature, "max_new_tokens": 48, **grammar}
        bodies.append({"text": f"{JSON_LIKE}#{number}\n", "sampling_params": sampling})
    answers = _ask(engine("both"), bodies, streams)
    for number, answer in enumerate(answers):
        text, reason = answer["text"], answer["meta_info"]["finish_reason"]["type"]
        assert reason == "stop", text
        if number % 3 == 0:
            parsed = json.loads(text)
            assert set(parsed) == {"name", "count"}
            assert isinstance(parsed["count"], int)
        elif number % 3 == 1:
            assert re.fullmatch(REGEX, text)
        else:
            assert re.fullmatch(r"go (left|right) [0-9]{2} steps", text)
    proposed = [answer["meta_info"]["hybridspec"][0]["cache"]["proposed"] for answer in answers]
    assert sum(proposed) > 0


def test_a_required_tool_call_is_valid(engine: EngineServers) -> None:
    tool = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": f"{JSON_LIKE}Call count for the pumps: 7."}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "count"}},
        "temperature": 0,
        "max_tokens": 80,
    }
    reply = httpx.post(f"{engine('both').url}/v1/chat/completions", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    message = reply.json()["choices"][0]["message"]
    called = message["tool_calls"][0]["function"] if message.get("tool_calls") else None
    arguments = json.loads(called["arguments"] if called else message["content"])
    if called is None:
        arguments = (arguments[0] if isinstance(arguments, list) else arguments)["parameters"]
    assert isinstance(arguments["count"], int)
    assert isinstance(arguments["name"], str)
