"""Random mixes of requests, shrunk by Hypothesis if one fails: what plain SGLang serves, HYBRID
serves, and what is greedy says the same.

A minute in the suite, five under ``make soak`` (``MIX_MINUTES``).
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine_servers import EngineServers
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine

MINUTES = float(os.environ.get("MIX_MINUTES", "1"))
MIXES = max(1, round(MINUTES * 60 / 7))
"""A mix takes about seven seconds on both servers of two cores."""

GRAMMARS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {"regex": r"(yes|no), [a-z]{3,8}\."},
    {"json_schema": json.dumps({"type": "array", "items": {"type": "integer"}, "maxItems": 3})},
)
Body = dict[str, Any]


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """One request; ``prompt``, ``cut`` and ``patience`` are not SGLang's and are taken out."""
    sampling: Body = {
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.0, 0.7])),
        "max_new_tokens": draw(st.integers(1, 28)),
        **draw(st.sampled_from(GRAMMARS)),
    }
    if draw(st.booleans()):
        sampling["stop"] = draw(
            st.lists(st.sampled_from(["\n", ":", "the", ")", " = "]), max_size=2)
        )
    if draw(st.booleans()) and not {"regex", "json_schema"} & sampling.keys():
        # With a grammar, what follows its end is nobody's: SGLang's algorithms differ there.
        sampling["ignore_eos"] = draw(st.booleans())
    if sampling["temperature"]:
        sampling["top_p"] = draw(st.sampled_from([0.5, 0.95, 1.0]))
        sampling["min_p"] = draw(st.sampled_from([0.0, 0.1]))
    return {
        "sampling_params": sampling,
        "cache_salt": draw(st.sampled_from([None, None, "a", "b"])),
        "return_logprob": draw(st.sampled_from([False, False, False, True])),
        "prompt": draw(st.integers(0, 23)),
        "cut": draw(st.integers(1, 160)),
        # Seconds until the user leaves.
        "patience": draw(st.sampled_from([None, None, None, 0.05, 0.8])),
    }


def _answers(
    server: Server, mix: list[Body], prompts: list[list[int]]
) -> list[tuple[int, str, list[int]] | None]:
    """(status, text, token ids) of every request, sent at once; None where the user left."""

    def send(body: Body) -> tuple[int, str, list[int]] | None:
        asked = {key: body[key] for key in ("sampling_params", "cache_salt", "return_logprob")}
        asked["input_ids"] = prompts[body["prompt"]][-body["cut"] :]
        try:
            reply = http.post("/generate", json=asked, timeout=body["patience"] or 300)
        except httpx.TimeoutException:
            return None
        content = reply.json()
        return reply.status_code, content.get("text", ""), content.get("output_ids", [])

    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=server.url, trust_env=False, limits=limits) as http,
        ThreadPoolExecutor(len(mix)) as pool,
    ):
        return list(pool.map(send, mix))


def test_random_mixes_are_served_as_plain_decoding_serves_them(
    engine: EngineServers, prompts: list[list[int]]
) -> None:
    @settings(
        max_examples=MIXES,
        deadline=None,
        derandomize=MINUTES < 5,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(bodies(), min_size=4, max_size=12))
    def served_alike(mix: list[Body]) -> None:
        plain = _answers(engine("plain"), mix, prompts)
        ours = _answers(engine("goodput"), mix, prompts)
        for body, want, seen in zip(mix, plain, ours, strict=True):
            if want is None or seen is None:
                continue
            sampling = body["sampling_params"]
            assert seen[0] == want[0], body
            assert len(seen[2]) <= sampling["max_new_tokens"]
            if sampling["temperature"] == 0.0:
                assert seen[1:] == want[1:], body
            elif "regex" in sampling and len(seen[2]) < sampling["max_new_tokens"]:
                # A stop string may end it early; what is there begins the language.
                assert re.match(r"(y|n|$)", seen[1]), body

    served_alike()
    assert "Traceback" not in engine("goodput").log_text()
