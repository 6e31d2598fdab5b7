"""A server under pressure and under control: nothing leaks, and nobody's text changes.

The server has a small KV pool, short chunks and a short context, so that requests are chunked,
pushed out and cut off.
"""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engine_metrics import metric
from engine_servers import EngineServers, generate, post_all
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine

CONTEXT = 448
TIGHT = (
    *("--max-total-tokens", "1600"),
    *("--context-length", str(CONTEXT)),
    *("--chunked-prefill-size", "64"),
    # Admit as many requests as fit now, so that their growth has to push some out again.
    *("--schedule-conservativeness", "0.0"),
    "--enable-priority-scheduling",
)
TOKENS = 64
STORM = 200


@pytest.fixture
def tight(engine: EngineServers) -> Server:
    return engine("goodput", *TIGHT)


@pytest.fixture(scope="module")
def fitting(prompts: list[list[int]]) -> list[int]:
    """Which prompts fit with their answers."""
    return [i for i, prompt in enumerate(prompts) if len(prompt) < CONTEXT - TOKENS - 1]


def _settled(server: Server) -> None:
    """Wait until no request runs, then check that all that requests held is back."""
    deadline = time.monotonic() + 60
    while metric(server, "sglang:num_running_reqs") or metric(server, "sglang:num_queue_reqs"):
        assert time.monotonic() < deadline, "requests still run"
        time.sleep(0.5)
    reply = httpx.post(f"{server.url}/flush_cache", timeout=60)
    assert reply.status_code == 200  # refused while any request is held
    assert metric(server, "hybridspec_suffix_cache_requests") == 0
    assert metric(server, "hybridspec_suffix_cache_bytes") == 0
    log = server.log_path.read_text()
    assert "leak" not in log
    assert "Traceback" not in log


def test_chunks_retractions_and_priorities_do_not_change_the_text(
    tight: Server, prompts: list[list[int]], plain_text: list[list[int]], fitting: list[int]
) -> None:
    before = tight.log_path.read_text().count("Retract requests")
    bodies = [
        {
            "input_ids": prompts[i],
            "priority": i % 3,
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS},
        }
        for i in fitting
    ]
    replies = post_all(tight, bodies, streams=12)
    seen = [reply.json()["output_ids"] for reply in replies]
    assert seen == [plain_text[i] for i in fitting]
    assert tight.log_path.read_text().count("Retract requests") > before
    _settled(tight)


@pytest.mark.parametrize("room", [7, 9, 33, 45])
def test_the_context_limit_ends_a_request_inside_an_accepted_run(
    tight: Server, prompts: list[list[int]], plain_text: list[list[int]], room: int
) -> None:
    # It repeats itself, so that its continuation is drafted from the first step on.
    prompt = ((prompts[0][-60:] + plain_text[0]) * 9)[: CONTEXT - room]
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": None, "ignore_eos": True},
    }
    reply = httpx.post(f"{tight.url}/generate", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    meta = reply.json()["meta_info"]
    assert meta["finish_reason"]["type"] == "length"
    # SGLang keeps two tokens of the context free, in plain decoding too.
    assert meta["completion_tokens"] == room - 2
    (report,) = meta["hybridspec"]
    assert report["cache"]["accepted"] > 0
    assert len(reply.json()["output_ids"]) == meta["completion_tokens"]


def test_an_abort_storm_leaves_nothing_behind_and_others_unharmed(
    tight: Server, prompts: list[list[int]], plain_text: list[list[int]], fitting: list[int]
) -> None:
    rng = random.Random(4)
    tokens = 16

    def ask(number: int) -> tuple[int, list[int]] | None:
        index = fitting[number % len(fitting)]
        body: dict[str, Any] = {
            "input_ids": prompts[index],
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
        }
        cut = number % 2 == 1
        try:
            reply = http.post(
                "/generate", json=body, timeout=rng.uniform(0.01, 6.0) if cut else 300
            )
        except httpx.TimeoutException:
            return None
        return index, reply.json()["output_ids"]

    with (
        httpx.Client(base_url=tight.url, limits=httpx.Limits(max_connections=None)) as http,
        ThreadPoolExecutor(32) as pool,
    ):
        seen = [answer for answer in pool.map(ask, range(STORM)) if answer is not None]
    assert STORM // 2 <= len(seen) < STORM
    wrong = [index for index, ids in seen if ids != plain_text[index][:tokens]]
    assert not wrong
    _settled(tight)


def test_a_pause_delays_and_does_not_change(
    tight: Server, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generate, tight, prompts[:1], TOKENS)
        for mode in ("in_place", "retract"):
            time.sleep(0.3)
            body = {"mode": mode}
            paused = httpx.post(f"{tight.url}/pause_generation", json=body, timeout=60)
            assert paused.status_code == 200, paused.text
            time.sleep(0.5)
            going = httpx.post(f"{tight.url}/continue_generation", json={}, timeout=60)
            assert going.status_code == 200, going.text
        assert running.result(timeout=120) == plain_text[:1]


def test_new_weights_drop_the_drafts_of_old_ones(
    engine: EngineServers, tight: Server, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    assert generate(tight, prompts[:1], TOKENS) == plain_text[:1]
    assert generate(tight, prompts[1:2], TOKENS) == plain_text[1:2]  # shows the caches' size
    assert metric(tight, "hybridspec_suffix_cache_bytes") > 0
    args = engine.args("plain")
    target = args[args.index("--model-path") + 1]
    body = {"model_path": target, "flush_cache": False}
    reply = httpx.post(f"{tight.url}/update_weights_from_disk", json=body, timeout=300)
    assert reply.json()["success"], reply.text
    assert metric(tight, "hybridspec_suffix_cache_bytes") == 0
    assert generate(tight, prompts[:1], TOKENS) == plain_text[:1]


def test_a_server_that_is_told_to_end_ends(engine: EngineServers, tight: Server) -> None:
    assert generate(tight, [[1, 2, 3]], 4)
    assert engine.end("goodput", *TIGHT) in (0, -signal.SIGTERM)
    assert "Traceback" not in tight.log_text()
