"""Unique prompts for minutes: what a server's memory and steps do meanwhile.

Nothing here decides what is good: the tests do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import httpx
import psutil

from engine_metrics import metric
from engine_servers import post_all
from hybridspec.loadtest.server import Server

STREAMS = 8
BATCH = 24
"""Requests between two looks at the server."""


@dataclass(frozen=True, slots=True)
class Look:
    """A server after one batch of requests.

    Attributes:
        seconds: since the soak began.
        resident: bytes of all its processes together.
        step: mean wall time of the batch's decode steps, seconds, prefills included.
        suffix_bytes: what the suffix cache says it holds.
        series: metric series that the server exports.
    """

    seconds: float
    resident: int
    step: float
    suffix_bytes: float
    series: int


def soak(server: Server, minutes: float, say: Callable[[str], None] = print) -> list[Look]:
    """Send prompts that were never sent before, ``STREAMS`` at a time; a look after each batch."""
    rng = random.Random(11)
    began = time.monotonic()
    looks: list[Look] = []
    while (passed := time.monotonic() - began) < 60 * minutes:
        before, started = metric(server, "hybridspec_steps_total"), time.monotonic()
        _ask(server, [_prompt(rng) for _ in range(BATCH)])
        steps = metric(server, "hybridspec_steps_total") - before
        text = httpx.get(f"{server.url}/metrics/", timeout=30).text
        looks.append(
            Look(
                passed,
                _resident(server),
                (time.monotonic() - started) / steps,
                metric(server, "hybridspec_suffix_cache_bytes"),
                sum(not line.startswith("#") for line in text.splitlines()),
            )
        )
        last = looks[-1]
        say(
            f"{passed / 60:5.1f} min: {last.resident / 2**20:.0f} MiB, {last.step * 1e3:.0f} ms a "
            f"step, suffix trees {last.suffix_bytes / 2**20:.2f} MiB, {last.series} series"
        )
    return looks


def change(values: list[float]) -> float:
    """How far the median of the last third is from that of the third after the warm-up, which is
    the first third: 0.01 is one in a hundred more."""
    third = len(values) // 3
    return median(values[-third:]) / median(values[third : 2 * third]) - 1.0


def _prompt(rng: random.Random) -> list[int]:
    """Tokens nobody said before, with a part that repeats, so that there are drafts."""
    part = [rng.randrange(1000, 40000) for _ in range(40)]
    return [*part, *part, *(rng.randrange(1000, 40000) for _ in range(20)), *part[:10]]


def _ask(server: Server, prompts: list[list[int]]) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    bodies = [
        {"input_ids": prompt, "sampling_params": sampling, "cache_salt": str(number % 5)}
        for number, prompt in enumerate(prompts)
    ]
    for reply in post_all(server, bodies, streams=STREAMS):
        assert reply.status_code == 200, reply.text


def _resident(server: Server) -> int:
    process = psutil.Process(server.pid)
    return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)])
