"""What a user gets is what plain decoding gives: text, ends, counts, streams, log-probabilities.

Every request goes to a plain and to a HYBRID server, eight at a time, and the answers are compared
field by field. The prompts are edits and structured outputs, so that stops, limits and ends fall
into accepted cache drafts.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine_servers import EngineServers, post_all
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine

Body = dict[str, Any]
FIELDS = ("prompt_tokens", "completion_tokens", "finish_reason")
UNICODE = "Repeat exactly, twice: 😀🎉 naïve 漢字かな 🇨🇭 Ωμέγα"
SHORT = {"temperature": 0, "max_new_tokens": 48}


def _told(reply: httpx.Response) -> Any:
    """What a user sees of an answer, of one or of several choices."""
    if reply.status_code != 200:
        return reply.status_code
    content = reply.json()
    choices = content if isinstance(content, list) else [content]
    return [
        (each["text"], each["output_ids"], *(each["meta_info"][name] for name in FIELDS))
        for each in choices
    ]


@pytest.fixture(scope="module")
def requests(prompts: list[list[int]], plain_text: list[list[int]]) -> dict[str, Body]:
    """Requests by name; where they stop is taken from plain decoding's answers."""
    edits, answers = prompts[:8], plain_text[:8]
    made: dict[str, Body] = {}

    def add(name: str, prompt: list[int], **sampling: Any) -> None:
        made[name] = {"input_ids": prompt, "sampling_params": {**SHORT, **sampling}}

    for limit in (1, 2, 3, 7, 17):
        add(f"limit {limit}", edits[0], max_new_tokens=limit)
    for place in (5, 14, 23, 31):
        add(f"stop token {place}", edits[1], stop_token_ids=[answers[1][place]])
        add(f"stop token {place}, kept", edits[2], stop_token_ids=[answers[2][place]])
        made[f"stop token {place}, kept"]["sampling_params"]["no_stop_trim"] = True
    for stop in (["):"], ["return", "\n\n"], [" = "], ['"'], ["\n"]):
        add(f"stop {stop}", edits[3], stop=stop)
        add(f"stop {stop}, kept", prompts[9], stop=stop, no_stop_trim=True)
    add("stop regex", edits[4], stop_regex=["r[a-z]+n"])
    add("goes on after the end", prompts[8], ignore_eos=True, max_new_tokens=72)
    add("special tokens shown", prompts[8], skip_special_tokens=False, max_new_tokens=72)
    add("least tokens", prompts[8], min_new_tokens=60, max_new_tokens=72)
    add("three choices", edits[5], n=3)
    made["text prompt"] = {"text": UNICODE, "sampling_params": SHORT}
    made["one token"] = {"input_ids": edits[0][:1], "sampling_params": SHORT}
    made["no token"] = {"input_ids": [], "sampling_params": SHORT}
    made["empty text"] = {"text": "", "sampling_params": SHORT}
    made["longer than the context"] = {"input_ids": edits[0] * 60, "sampling_params": SHORT}
    return made


@pytest.fixture
def hybrid(engine: EngineServers) -> Server:
    return engine("goodput")


@pytest.fixture(scope="module")
def answers(engine: EngineServers, requests: dict[str, Body]) -> dict[str, tuple[Any, Any]]:
    """(plain decoding's, HYBRID's) answer of every request."""
    bodies = list(requests.values())
    plain = [_told(reply) for reply in post_all(engine("plain"), bodies)]
    ours = [_told(reply) for reply in post_all(engine("goodput"), bodies)]
    return dict(zip(requests, zip(plain, ours, strict=True), strict=True))


def test_stops_limits_ends_and_counts_are_plain_decodings(
    answers: dict[str, tuple[Any, Any]],
) -> None:
    wrong = {name: pair for name, pair in answers.items() if pair[0] != pair[1]}
    assert not wrong


def test_the_requests_do_stop_where_they_should(
    requests: dict[str, Body], answers: dict[str, tuple[Any, Any]]
) -> None:
    for name, (_, ours) in answers.items():
        sampling = requests[name]["sampling_params"]
        if isinstance(ours, int):
            assert ours == 400
            continue
        for text, ids, _, completion_tokens, reason in ours:
            assert completion_tokens <= sampling["max_new_tokens"]
            assert len(ids) == completion_tokens
            if name.startswith("limit"):
                assert completion_tokens == sampling["max_new_tokens"]
                assert reason == {"type": "length", "length": completion_tokens}
            if name.startswith("stop token"):
                assert reason == {"type": "stop", "matched": sampling["stop_token_ids"][0]}
            if name.startswith("stop ["):
                assert reason["type"] in ("stop", "length")
                if reason["type"] == "stop" and "no_stop_trim" in sampling:
                    assert any(stop in text for stop in sampling["stop"])
    assert len(answers["three choices"][1]) == 3


def test_drafts_were_accepted_on_the_way(hybrid: Server, requests: dict[str, Body]) -> None:
    reply = post_all(hybrid, [requests["goes on after the end"]])[0].json()
    (report,) = reply["meta_info"]["hybridspec"]
    assert report["cache"]["accepted"] + report["model"]["accepted"] > 20
    steps = sum(of["steps"] for of in report.values())
    accepted = report["cache"]["accepted"] + report["model"]["accepted"]
    # The first token is prefill's; a last run may reach beyond the limit.
    assert steps + accepted >= reply["meta_info"]["completion_tokens"] - 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_says_what_the_whole_answer_says(hybrid: Server, path: str) -> None:
    body: Body = {"model": "default", "temperature": 0, "max_tokens": 60}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": UNICODE}]
    else:
        body["prompt"] = f"{UNICODE}\n{UNICODE}\n{UNICODE[:30]}"
    with httpx.Client(base_url=hybrid.url, timeout=300, trust_env=False) as http:
        whole = http.post(path, json=body).json()
        choice = whole["choices"][0]
        text = choice["message"]["content"] if "chat" in path else choice["text"]
        pieces, reason, usage = [], None, None
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with http.stream("POST", path, json=asked) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                usage = event.get("usage") or usage
                for part in event["choices"]:
                    said = part["delta"].get("content") if "chat" in path else part["text"]
                    pieces.append(said or "")
                    reason = part["finish_reason"] or reason
    assert "".join(pieces) == text
    assert len(pieces) > 3
    told = [piece for piece in pieces if piece]
    # No half character on the way; the token limit may leave one at the end.
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in told[:-1])
    assert any(ord(letter) > 0x3000 for letter in text)
    assert reason == choice["finish_reason"]
    assert usage is not None
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage[name] for name in counts] == [whole["usage"][name] for name in counts]


def test_an_openai_answer_carries_the_requests_numbers_if_asked(hybrid: Server) -> None:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": UNICODE}],
        "max_tokens": 24,
        "return_meta_info": True,
    }
    reply = httpx.post(f"{hybrid.url}/v1/chat/completions", json=body, timeout=300).json()
    (report,) = reply["choices"][0]["meta_info"]["hybridspec"]
    assert set(report) == {"none", "cache", "model"}


def test_log_probabilities_are_plain_decodings(
    engine: EngineServers, prompts: list[list[int]]
) -> None:
    bodies = [
        {
            "input_ids": prompt,
            "sampling_params": SHORT,
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 6,
            "top_logprobs_num": 3,
            "token_ids_logprob": [1, 2],
        }
        for prompt in (*prompts[:2], *prompts[8:10], *prompts[16:18])
    ]
    plain, ours = (
        [reply.json() for reply in post_all(engine(name), bodies)] for name in ("plain", "goodput")
    )
    for want, seen in zip(plain, ours, strict=True):
        assert seen["output_ids"] == want["output_ids"]
        for kind in ("input", "output"):
            for name in ("token_logprobs", "top_logprobs", "token_ids_logprobs"):
                key = f"{kind}_{name}"
                ours_flat, plain_flat = (_flat(each["meta_info"][key]) for each in (seen, want))
                assert [entry[1] for entry in ours_flat] == [entry[1] for entry in plain_flat], key
                assert [entry[0] for entry in ours_flat] == pytest.approx(
                    [entry[0] for entry in plain_flat], abs=1e-3
                )
        assert len(seen["meta_info"]["output_token_logprobs"]) == len(seen["output_ids"])


def test_prefixes_are_found_as_often_as_in_plain_decoding(
    engine: EngineServers, prompts: list[list[int]]
) -> None:
    def cached(server: Server) -> list[int]:
        assert httpx.post(f"{server.url}/flush_cache", timeout=60).status_code == 200
        found = []
        for prompt in [*prompts[:3], *prompts[:3]]:
            body = {
                "input_ids": prompt,
                "sampling_params": {"temperature": 0, "max_new_tokens": 24},
            }
            reply = httpx.post(f"{server.url}/generate", json=body, timeout=300).json()
            found.append(reply["meta_info"]["cached_tokens"])
            # The answer is cached too: a next turn finds it.
            body["input_ids"] = [*prompt, *reply["output_ids"], 198]
            reply = httpx.post(f"{server.url}/generate", json=body, timeout=300).json()
            found.append(reply["meta_info"]["cached_tokens"])
        return found

    ours = cached(engine("goodput"))
    theirs = cached(engine("plain"))
    # A prefix under EAGLE3 and HYBRID ends one token earlier: its last hidden state belongs to two.
    assert all(0 <= other - own <= 1 for own, other in zip(ours, theirs, strict=True))
    assert min(ours[6:]) > 0


def _flat(entries: list[Any]) -> list[tuple[float, int]]:
    """(log-probability, token) of every entry, nested or not, those without a number left out."""
    found: list[tuple[float, int]] = []
    for entry in entries:
        if entry is None:
            continue
        if isinstance(entry[0], list):
            found += _flat(entry)
        elif entry[0] is not None:
            found.append((entry[0], entry[1]))
    return found
