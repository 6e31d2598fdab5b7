"""From trace sets to a gate folder, and figures of a gate: the rooms joined for the command.

Lives beside the command because it joins rooms that do not import each other: the suffix cache of
``adapters``, ``gate`` and ``export``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.gate.baselines import Baseline, online_table, simple_baselines
from hybridspec.gate.errors import GateError
from hybridspec.gate.evaluate import HIT, judge_curves, precision_recall_curve, reliability
from hybridspec.gate.features import DRAFT_FEATURES, HISTORY_FEATURES, TOKEN_FEATURES, FeatureSet
from hybridspec.gate.observations import Observations
from hybridspec.gate.replay import DEFAULT_K, EVERY_POSITION, ReplayData, StepMix, replay
from hybridspec.gate.store import Gate
from hybridspec.gate.tokens import TokenTable
from hybridspec.gate.traces import Trace, read_traces

if TYPE_CHECKING:  # Torch is for training alone: evaluating a gate does without
    from hybridspec.gate.train import TrainSettings

# Every fifth request is held out. Outputs from MAX_OUTPUT tokens on are mostly runaway repetition,
# which any gate predicts: 11 such hold 16% of all tokens in the traces of arXiv 2601.11580.
HOLD_OUT = 5
MAX_OUTPUT = 2048

# How traces are replayed for training: twice as served, with different step boundaries, and once at
# every position. Without the last, P(accepted >= 6) at every position is off by 0.06 (ECE).
PASSES = (StepMix(), StepMix(), EVERY_POSITION)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rows:
    """Replayed rows of all traces; ``trace`` counts over all of them.

    Attributes:
        data: observations, labels, groups.
        traces: the traces that ``data.trace`` points to.
        sets: rows of each trace set's replay, in order.
    """

    data: ReplayData
    traces: list[Trace]
    sets: dict[str, NDArray[np.intp]] = field(default_factory=dict)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """bool ``[rows]``, rows of every fifth request."""
        held: NDArray[np.bool_] = self.data.trace % HOLD_OUT == 0
        return held

    @property
    def workloads(self) -> dict[str, NDArray[np.bool_]]:
        """bool ``[rows]`` of each workload, in order of name."""
        names = np.array([trace.workload for trace in self.traces])[self.data.trace]
        return {str(name): names == name for name in np.unique(names)}


def train_gate(
    traces: Sequence[Path],
    out: Path,
    *,
    table: TokenTable | None = None,
    features: Sequence[str] | None = None,
    k: int = DEFAULT_K,
    passes: Sequence[StepMix] = PASSES,
    settings: TrainSettings | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Train a gate from trace sets and write its folder.

    Args:
        traces: trace sets, each one server's life: its requests share one suffix tree.
        out: gate folder to make or replace.
        table: the target's token flags; adds the token features to the default set.
        features: names to use instead of the default set.
        k: length of the survival curve and of the longest draft.
        passes: one replay each, with the step boundaries that it describes.
        settings: of the fit.
        say: told what happens, a line at a time.

    Returns:
        The summary that stands in the manifest: ``data``, ``fit``, ``held_out`` (see
        :func:`figures`).

    Raises:
        GateError: unreadable traces, too few of them, unknown features, or failed parity.
    """
    from hybridspec.export.onnx import export_gate
    from hybridspec.gate.train import TrainSettings, fit, predict

    settings = settings or TrainSettings()
    if features is None:
        features = [*DRAFT_FEATURES, *HISTORY_FEATURES, *(TOKEN_FEATURES if table else ())]
    feature_set = FeatureSet(features, table)
    rows = replay_sets(traces, passes, k=k, say=say)
    matrix, held = feature_set.compute(rows.data.obs), rows.held_out
    say(f"training on {int((~held).sum()):,} rows, {int(held.sum()):,} held out")
    done = fit(
        matrix[~held],
        rows.data.accepted[~held],
        rows.data.trace[~held],
        features,
        k,
        settings,
        lambda epoch, loss: say(f"epoch {epoch + 1}: validation loss {loss:.4f}"),
    )
    summary: dict[str, Any] = {
        "data": {"requests": len(rows.traces), "rows": len(matrix), "workloads": {}},
        "fit": {**asdict(settings), "best_epoch": done.epoch, "validation_loss": done.loss},
    }
    for name, mask in rows.workloads.items():
        summary["data"]["workloads"][name] = int(mask.sum())
    baselines = simple_baselines(rows.data.obs)
    summary["held_out"] = figures(rows, predict(done.model, matrix[held]), baselines, only=held)
    export_gate(done.model, features, out, rows=matrix[held], table=table, training=summary)
    say(f"wrote {out}")
    return summary


def evaluate_gate(
    traces: Sequence[Path], gate: Gate | None = None, *, held_out: bool = False, say: Say = print
) -> dict[str, Any]:
    """Figures at every output position: ``pooled`` and one entry per workload.

    Each as :func:`figures` gives them, with ``curves`` (recall and precision of every predictor)
    and, of the gate, ``reliability``.

    Args:
        traces: trace sets.
        gate: None: the baselines alone.
        held_out: only every fifth request, those that :func:`train_gate` leaves out.
        say: told what happens.

    Raises:
        GateError: unreadable traces, or none that can be replayed.
    """
    k = gate.k if gate is not None else DEFAULT_K
    rows = replay_sets(traces, [EVERY_POSITION], k=k, say=say)
    data = rows.data
    only = rows.held_out if held_out else np.ones(data.obs.rows, np.bool_)
    survival = _predict(gate, data.obs.take(only)) if gate is not None else None
    baselines = simple_baselines(data.obs)
    tables = [online_table(data.obs.take(part), data.accepted[part]) for part in rows.sets.values()]
    baselines["online_table"] = Baseline(survival=np.concatenate(tables))
    if held_out and (paper := _paper_gate(rows, gate, say)) is not None:
        baselines["paper"] = paper
    seen = figures(rows, survival, baselines, only=only)
    if survival is not None:
        baselines["gate"] = Baseline(survival=_spread(survival, only))
    for name, mask in _masks(rows).items():
        mask = mask & only
        hit = data.accepted[mask] >= HIT
        seen[name]["curves"] = {
            each: precision_recall_curve(baseline.take(mask).rank(), hit)
            for each, baseline in baselines.items()
        }
        if survival is not None:
            seen[name]["reliability"] = reliability(baselines["gate"].take(mask).rank(), hit)
    return seen


def leave_one_out(
    traces: Sequence[Path],
    *,
    features: Sequence[str] = (*DRAFT_FEATURES, *HISTORY_FEATURES),
    k: int = DEFAULT_K,
    settings: TrainSettings | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Figures on each workload of a gate that was trained on all others, at every position.

    Args:
        traces: trace sets of at least two workloads.
        features: of the gates; none that needs a token table.
        k: length of the survival curve.
        settings: of the fits.
        say: told what happens.

    Raises:
        GateError: unreadable traces, or a single workload.
    """
    from hybridspec.gate.train import TrainSettings, fit, predict

    rows = replay_sets(traces, [EVERY_POSITION], k=k, say=say)
    if len(rows.workloads) < 2:
        raise GateError("traces: leaving one workload out needs at least two")
    matrix = FeatureSet(features).compute(rows.data.obs)
    baselines = simple_baselines(rows.data.obs)
    seen: dict[str, Any] = {}
    for name, mask in rows.workloads.items():
        say(f"training without {name} on {int((~mask).sum()):,} rows")
        done = fit(
            matrix[~mask],
            rows.data.accepted[~mask],
            rows.data.trace[~mask],
            features,
            k,
            settings or TrainSettings(),
        )
        seen[name] = figures(rows, predict(done.model, matrix[mask]), baselines, only=mask)[name]
    return seen


def _spread(values: NDArray[np.float32], only: NDArray[np.bool_]) -> NDArray[np.float32]:
    """``values`` of the rows of ``only`` among all rows; zero elsewhere."""
    full = np.zeros((len(only), values.shape[1]), np.float32)
    full[only] = values
    return full


def _masks(rows: Rows) -> dict[str, NDArray[np.bool_]]:
    return {"pooled": np.ones(rows.data.obs.rows, np.bool_), **rows.workloads}


def _paper_gate(rows: Rows, gate: Gate | None, say: Say) -> Baseline | None:
    """The paper's gate, trained on what is not held out; None without Torch or such rows."""
    held = rows.held_out
    if find_spec("torch") is None or held.all() or not held.any():
        return None
    from hybridspec.gate.paper import fit_and_predict

    features = gate.features if gate else FeatureSet([*DRAFT_FEATURES, *HISTORY_FEATURES])
    matrix = features.compute(rows.data.obs)
    say(f"training the paper's gate on {int((~held).sum()):,} rows, for comparison")
    length = np.zeros(len(matrix), np.float32)
    length[held] = fit_and_predict(matrix[~held], rows.data.accepted[~held], matrix[held])
    return Baseline(length)


def usable_traces(path: Path) -> tuple[list[Trace], int]:
    """A set's traces without runaway outputs, and how many those were."""
    read = read_traces(path)
    kept = [trace for trace in read if len(trace.output_ids) < MAX_OUTPUT]
    return kept, len(read) - len(kept)


def replay_sets(paths: Sequence[Path], passes: Sequence[StepMix], *, k: int, say: Say) -> Rows:
    """Replay each set once per pass, on a fresh suffix cache each time."""
    kept: list[Trace] = []
    parts: list[ReplayData] = []
    sets: dict[str, NDArray[np.intp]] = {}
    done = 0
    for path in paths:
        traces, too_long = usable_traces(path)
        say(f"{path}: {len(traces)} requests, {too_long} left out as too long")
        for seed, mix in enumerate(passes):
            part = replay(traces, SuffixCache(), k=k, mix=mix, seed=seed)
            part.trace[:] += len(kept)
            parts.append(part)
            sets[f"{path}, pass {seed}"] = np.arange(done, done + part.obs.rows)
            done += part.obs.rows
        kept += traces
    if not parts or not any(part.obs.rows for part in parts):
        raise GateError("traces: no position has a cache draft; collect more traces")
    return Rows(ReplayData.concat(parts, k), kept, sets)


def figures(
    rows: Rows,
    survival: NDArray[np.float32] | None,
    baselines: Mapping[str, Baseline],
    *,
    only: NDArray[np.bool_],
) -> dict[str, Any]:
    """Figures over the rows of ``only``: ``pooled`` and one entry per workload.

    Args:
        rows: all rows.
        survival: float32 ``[rows of only, K]``, the gate's curves; None leaves its figures out.
        baselines: by name, over all rows.
        only: bool ``[rows]``.

    Returns:
        Of each: ``rows``, ``hits``, the gate's figures (see
        :func:`hybridspec.gate.evaluate.judge_curves`) and ``baselines`` by name.
    """
    data = rows.data.take(only)
    masks = {name: mask[only] for name, mask in _masks(rows).items()}
    kept = {name: baseline.take(only) for name, baseline in baselines.items()}
    return {
        name: {
            "rows": int(mask.sum()),
            "hits": int((data.accepted[mask] >= HIT).sum()),
            **(judge_curves(survival[mask], data.accepted[mask]) if survival is not None else {}),
            "baselines": {
                each: baseline.take(mask).judge(data.accepted[mask])
                for each, baseline in kept.items()
            },
        }
        for name, mask in masks.items()
    }


def _predict(gate: Gate, obs: Observations) -> NDArray[np.float32]:
    matrix = gate.features.compute(obs)
    return np.concatenate(
        [gate.predict(matrix[i : i + 512]).survival.copy() for i in range(0, len(matrix), 512)]
        or [np.zeros((0, gate.k), np.float32)]
    )
