"""Speed-ups of all policies in simulated time, by workload and batch size.

Joins rooms that do not import each other: the suffix cache, gates and their training, and the
simulator. Everything here is simulated; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.gate.ablations import AlwaysWide, MeanOnly, RowByRow
from hybridspec.gate.base import Policy
from hybridspec.gate.cost import StepCost, StepTimeModel
from hybridspec.gate.errors import GateError
from hybridspec.gate.features import DRAFT_FEATURES, HISTORY_FEATURES, FeatureSet
from hybridspec.gate.goodput import Goodput
from hybridspec.gate.observations import Observations
from hybridspec.gate.policy import SERVED_LADDER, make_policy
from hybridspec.gate.replay import EVERY_POSITION
from hybridspec.gate.simulate import Oracle, Outcome, Survival, simulate
from hybridspec.gate.store import Gate
from hybridspec.gate.traces import Trace
from hybridspec.gate_training import replay_sets, usable_traces

MODEL_STEPS = 7
"""Longest chain of EAGLE3; where it drafts alone, the best of the lengths up to it is taken."""
FOLDS = 5
ABLATIONS: dict[str, tuple[Callable[[Sequence[int], StepTimeModel], Policy], bool | None]] = {
    "always_wide": (AlwaysWide, None),
    "row_by_row": (RowByRow, None),
    "mean_only": (MeanOnly, None),
    "wrong_times": (Goodput, False),
    "wrong_times_learning": (Goodput, True),
}
"""``goodput`` without an idea; whether step times that start wrong are learned (None: they are
right)."""

Say = Callable[[str], None]


def run(
    sets: Sequence[Path],
    *,
    profile: str,
    batches: Sequence[int],
    gate: Gate | None = None,
    epochs: int = 15,
    ablations: bool = False,
    model_steps: int = MODEL_STEPS,
    model_free: int = 0,
    say: Say = print,
) -> dict[str, Any]:
    """Simulate every workload at every batch size.

    Args:
        sets: trace sets; requests whose EAGLE3 lengths are unknown, and runaway outputs, are left
            out.
        profile: name of a step-time profile, or a file that a server's start has kept.
        batches: requests at a time.
        gate: the gate of ``threshold`` and ``goodput``; None trains one for every fifth of the
            requests, on the other four fifths.
        epochs: most epochs of those.
        ablations: simulate ``goodput`` without each of its ideas too (see :data:`ABLATIONS`).
        model_steps: draft tokens of EAGLE3's chain.
        model_free: those of them that need no forward of the draft head.
        say: told what happens.

    Returns:
        ``profile``, ``cells``: each with ``workload``, ``batch``, ``requests``, ``speedup`` over
        plain decoding by policy (``eagle3`` with its best chain; ``table`` is ``goodput`` without a
        gate, by an acceptance table learned on the way; ``merged`` is ``goodput`` that may verify
        both drafts of a row; ``oracle``), ``tpot_ms`` by policy (median,
        95th percentile and the slowest decile's mean over requests) and the ``eagle3_steps`` that
        were best.

    Raises:
        GateError: unreadable traces, none that can be used, or an unknown profile.
    """
    cost = StepTimeModel.named(profile)
    read = {path: usable_traces(path)[0] for path in sets}
    curves = _given(gate) if gate is not None else _cross_fitted(read, epochs, say)
    cells: list[dict[str, Any]] = []
    for path, traces_of_set in read.items():
        usable = [
            (number, trace)
            for number, trace in enumerate(traces_of_set)
            if trace.model_accepted is not None and len(trace.output_ids) > 1
        ]
        if not usable:
            say(f"{path}: no request knows EAGLE3's accepted lengths; left out")
            continue
        traces = [trace for _, trace in usable]
        survival = _of_set(curves, np.array([number for number, _ in usable]))
        for batch in batches:
            say(f"{traces[0].workload}, batch {batch}")
            chain = model_steps, model_free
            cells.append(_cell(traces, cost, batch, survival, ablations, chain))
    if not cells:
        raise GateError("simulation: no request knows EAGLE3's accepted lengths")
    return {"simulated": True, "profile": profile, "cells": cells}


def _cell(
    traces: Sequence[Trace],
    cost: StepTimeModel,
    batch: int,
    survival: Survival,
    ablations: bool,
    chain: tuple[int, int],
) -> dict[str, Any]:
    model_steps, model_free = chain

    def served(
        decider: Policy | Oracle,
        curves: Survival | None = None,
        *,
        steps: int = model_steps,
        cache: bool = True,
        merges: bool = False,
        learns: StepTimeModel | None = None,
    ) -> Outcome:
        return simulate(
            traces,
            decider,
            cost,
            batch=batch,
            drafter=SuffixCache() if cache else None,
            survival=curves,
            model_steps=steps,
            model_free=min(model_free, steps),
            merges=merges,
            learns=learns,
        )

    def policy(name: str, ladder: Sequence[int] = SERVED_LADDER) -> Policy:
        return make_policy(name, ladder=ladder, cost=cost)

    plain = served(policy("none", (1,)), steps=0, cache=False)
    fixed = {
        steps: served(policy("model", (1, steps + 1)), steps=steps, cache=False)
        for steps in range(1, model_steps + 1)
    }
    best = max(fixed, key=lambda steps: fixed[steps].rate)
    outcomes = {
        "eagle3": fixed[best],
        "cache": served(policy("cache"), steps=0),
        "score": served(policy("score")),
        "threshold": served(policy("threshold"), survival),
        "table": served(policy("goodput")),
        "goodput": served(policy("goodput"), survival),
        "merged": served(policy("goodput"), survival, merges=True),
    }
    if ablations:
        for name, (make, learn) in ABLATIONS.items():
            times = StepTimeModel(_too_cheap(cost.prior)) if learn is not None else cost
            outcomes[name] = served(
                make(SERVED_LADDER, times), survival, learns=times if learn else None
            )
    outcomes["oracle"] = served(Oracle(SERVED_LADDER, cost))
    return {
        "workload": traces[0].workload,
        "batch": batch,
        "requests": len(traces),
        "speedup": {name: round(each.rate / plain.rate, 4) for name, each in outcomes.items()},
        "tpot_ms": {name: _tpot(each) for name, each in {"plain": plain, **outcomes}.items()},
        "eagle3_steps": best,
    }


def _tpot(outcome: Outcome) -> dict[str, float]:
    """Median, 95th percentile and mean of the slowest tenth, milliseconds."""
    times = np.sort(outcome.tpot) * 1e3
    slowest = times[-max(1, len(times) // 10) :]
    figures = {
        "p50": np.median(times),
        "p95": np.percentile(times, 95),
        "slowest_decile": slowest.mean(),
    }
    return {name: round(float(value), 3) for name, value in figures.items()}


def _too_cheap(cost: StepCost) -> StepCost:
    """A step-time model that takes verifying a token for four times as cheap as it is."""
    return replace(cost, token=cost.token / 4)


def _of_set(curves: Survival, numbers: NDArray[np.int64]) -> Survival:
    """The same curves, asked by place among the simulated requests of a set."""
    return lambda obs, at: curves(obs, numbers[at])


def _given(gate: Gate) -> Survival:
    return lambda obs, numbers: gate.judge(obs).survival


def _cross_fitted(sets: Mapping[Path, Sequence[Trace]], epochs: int, say: Say) -> Survival:
    """Curves of gates that have not seen the request: one for each fifth of every set."""
    from hybridspec.gate.train import TrainSettings, fit, predict

    names = (*DRAFT_FEATURES, *HISTORY_FEATURES)
    features = FeatureSet(names)
    rows = replay_sets(list(sets), [EVERY_POSITION], k=32, say=say)
    matrix = features.compute(rows.data.obs)
    # Traces are numbered over all sets; what counts is the number within its own.
    first = np.cumsum([0, *map(len, sets.values())])
    inside = rows.data.trace - first[np.searchsorted(first, rows.data.trace, side="right") - 1]
    models = []
    for fold in range(FOLDS):
        rest = inside % FOLDS != fold
        say(f"training gate {fold + 1} of {FOLDS} on {int(rest.sum()):,} rows")
        settings = TrainSettings(epochs=epochs)
        labels, groups = rows.data.accepted[rest], rows.data.trace[rest]
        models.append(fit(matrix[rest], labels, groups, names, 32, settings).model)

    def curves(obs: Observations, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        asked = features.compute(obs)
        result = np.zeros((len(asked), 32), np.float32)
        for fold in np.unique(numbers % FOLDS):
            mine = numbers % FOLDS == fold
            result[mine] = predict(models[fold], asked[mine])
        return result

    return curves
