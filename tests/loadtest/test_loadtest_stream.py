"""Streamed answers, arrivals and the server's counters, without a server."""

from __future__ import annotations

from itertools import islice
from statistics import mean

import pytest

from hybridspec.loadtest.arrivals import ARRIVALS, gaps
from hybridspec.loadtest.server_metrics import Counters, between
from hybridspec.loadtest.stream import StreamedAnswer, StreamError

FIRST = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"a b c"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"


def answer(*parts: tuple[float, bytes]) -> StreamedAnswer:
    made = StreamedAnswer(started=10.0)
    for now, data in parts:
        made.feed(data, 10.0 + now)
    return made


def test_times_are_of_pieces_and_tokens_are_the_servers() -> None:
    seen = answer(
        (0.1, FIRST), (0.5, TEXT), (0.7, TEXT), (1.3, TEXT), (1.3, LAST), (1.4, USAGE + DONE)
    )
    seen.check()
    assert seen.ttft == pytest.approx(0.5)
    assert seen.gaps == pytest.approx([0.2, 0.6])
    assert seen.tpot == pytest.approx(0.8 / 8)
    assert (seen.output_tokens, seen.prompt_tokens, seen.finish_reason) == (9, 7, "stop")


def test_events_may_be_cut_anywhere() -> None:
    whole = FIRST + TEXT + TEXT + LAST + USAGE + DONE
    for size in (1, 7, 64):
        parts = [(0.1, whole[at : at + size]) for at in range(0, len(whole), size)]
        seen = answer(*parts)
        seen.check()
        assert len(seen.arrivals) == 2


def test_completions_stream_text() -> None:
    seen = answer((0.2, b'data: {"choices":[{"text":"hi","finish_reason":"length"}]}\n\n'))
    assert seen.ttft == pytest.approx(0.2)
    assert seen.finish_reason == "length"
    assert seen.tpot is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([TEXT, USAGE], "before its end mark"),
        ([TEXT, DONE], "no usage"),
    ],
)
def test_what_is_not_whole_is_refused(parts: list[bytes], why: str) -> None:
    with pytest.raises(StreamError, match=why):
        answer(*((0.1, part) for part in parts)).check()


def test_an_answer_may_end_before_any_text() -> None:
    seen = answer((0.1, FIRST), (0.2, LAST + USAGE + DONE))
    seen.check()
    assert (seen.arrivals, seen.gaps, seen.tpot) == ([], [], None)


def test_errors_inside_a_stream_are_errors() -> None:
    with pytest.raises(StreamError, match="out of memory"):
        answer((0.1, b'data: {"error": {"message": "out of memory"}}\n'))
    with pytest.raises(StreamError, match="not JSON"):
        answer((0.1, b"data: <html>\n"))


@pytest.mark.parametrize("kind", ARRIVALS)
def test_arrivals_have_the_rate_and_are_seeded(kind: str) -> None:
    drawn = list(islice(gaps(kind, 4.0, seed=1), 4000))
    assert mean(drawn) == pytest.approx(0.25, rel=0.05)
    assert drawn == list(islice(gaps(kind, 4.0, seed=1), 4000))
    assert min(drawn) >= 0


def exposition(rows: int, cache: int, accepted: int) -> Counters:
    return Counters(
        "# HELP hybridspec_rows_total Rows.\n"
        f'hybridspec_rows_total{{source="cache"}} {cache}.0\n'
        f'hybridspec_rows_total{{source="none"}} {rows - cache}.0\n'
        f'hybridspec_draft_tokens_total{{source="cache"}} {2 * accepted}.0\n'
        f'hybridspec_accepted_tokens_total{{source="cache"}} {accepted}.0\n'
        f'hybridspec_steps_total{{width="4",model_forward="no"}} {rows}.0\n'
        "sglang:num_running_reqs 3.0\n"
    )


def test_the_servers_side_is_what_grew() -> None:
    seen = between(exposition(10, 5, 8), exposition(30, 20, 48))
    assert seen is not None
    assert seen["steps"] == 20
    assert seen["accepted_length"] == 2.0
    assert seen["row_share"] == {"none": 0.25, "cache": 0.75, "model": 0.0}
    assert seen["acceptance_rate"] == {"cache": 0.5, "model": None}


def test_other_servers_have_no_such_side() -> None:
    other = Counters("sglang:num_running_reqs 3.0\n")
    assert not other
    assert between(other, other) is None
    assert between(exposition(10, 5, 8), exposition(10, 5, 8)) is None
