"""How long a gate's part of a decode step takes: features, session and policy, by row count."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.base import StepView
from hybridspec.gate.cost import StepTimeModel
from hybridspec.gate.observations import Observations
from hybridspec.gate.policy import SERVED_LADDER, make_policy
from hybridspec.gate.store import Gate

_MODEL_STEPS = 3
_UNCOUNTED = 200


def time_gate(
    gate: Gate, rows: Sequence[int] = (1, 8, 64), repeats: int = 3000
) -> list[dict[str, float]]:
    """Microseconds of judging random drafts and deciding about them with ``goodput``.

    Suffix look-up is not part of it.

    Args:
        gate: loaded for at least as many rows.
        rows: row counts, each with a draft.
        repeats: steps of each, after some that are not counted.

    Returns:
        Of each row count: ``rows``, ``p50`` and ``p99`` of the whole, and the medians ``features``,
        ``session`` and ``policy``.
    """
    policy = make_policy("goodput", ladder=SERVED_LADDER, cost=StepTimeModel.from_profile("h100"))
    found = []
    for count in rows:
        obs = _drafts(count, gate.k)
        model = np.full((count, _MODEL_STEPS), 0.5, np.float32)
        times = np.empty((repeats, 3))
        for index in range(-_UNCOUNTED, repeats):
            began = time.perf_counter()
            filled_rows = gate.fill(obs)
            filled = time.perf_counter()
            survival = gate.run(filled_rows).survival
            judged = time.perf_counter()
            policy.decide(StepView(obs.length, obs.score, survival, model, 300 * count, 1))
            decided = time.perf_counter()
            if index >= 0:
                times[index] = filled - began, judged - filled, decided - judged
        micro = times * 1e6
        p50, p99 = np.percentile(micro.sum(axis=1), (50, 99))
        parts = np.median(micro, axis=0)
        found.append(
            {
                "rows": count,
                "p50": float(p50),
                "p99": float(p99),
                **dict(zip(("features", "session", "policy"), map(float, parts), strict=True)),
            }
        )
    return found


def _drafts(rows: int, depth: int) -> Observations:
    rng = np.random.default_rng(0)
    obs = Observations.allocate(rows, depth)
    obs.length[:] = rng.integers(1, depth + 1, rows)
    inside = np.arange(depth) < obs.length[:, None]
    obs.tokens[inside] = rng.integers(0, 30_000, int(inside.sum()))
    probs: NDArray[np.float32] = np.sort(rng.random((rows, depth), np.float32), axis=1)[:, ::-1]
    obs.probs[:] = probs * inside
    obs.score[:] = obs.probs.sum(axis=1)
    obs.match_length[:] = rng.integers(1, 64, rows)
    obs.prompt_length[:] = obs.generated_length[:] = 300
    return obs
