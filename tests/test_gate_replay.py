"""Replay: labels, step boundaries, no look ahead. Traces: the format."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.gate.features import DRAFT_FEATURES, HISTORY_FEATURES, FeatureSet
from hybridspec.gate.observations import Observations
from hybridspec.gate.replay import EVERY_POSITION, ReplayData, StepMix, replay
from hybridspec.gate.traces import Trace

FEATURES = FeatureSet([*DRAFT_FEATURES, *HISTORY_FEATURES])


def trace(name: str, prompt: NDArray[np.integer], output: NDArray[np.integer]) -> Trace:
    return Trace(name, "made", "made", prompt.astype(np.int32), output.astype(np.int32))


def made_traces(count: int = 12, seed: int = 0) -> list[Trace]:
    """Outputs that partly copy their prompt and each other."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(10, 60, rng.integers(6, 30)) for _ in range(8)]
    made = []
    for i in range(count):
        copied = [phrases[j] for j in rng.permutation(4)[:3]]
        prompt = np.concatenate([rng.integers(10, 60, 5), *copied])
        parts = [phrases[j] if rng.random() < 0.7 else rng.integers(10, 60, 6) for j in range(6)]
        made.append(trace(str(i), prompt, np.concatenate(parts)))
    return made


def test_every_position_is_labelled_by_the_true_continuation() -> None:
    traces = made_traces(4)
    data = replay(traces, SuffixCache(), mix=EVERY_POSITION, concurrency=1)
    assert data.steps == sum(len(t.output_ids) - 1 for t in traces)
    assert data.accepted.max() >= 6
    for row in range(data.obs.rows):
        output = traces[data.trace[row]].output_ids
        position = data.position[row]
        assert data.obs.generated_length[row] == position
        assert data.obs.last_token[row] == output[position - 1]
        k = 0
        while (
            k < data.obs.length[row]
            and position + k < len(output)
            and data.obs.tokens[row, k] == output[position + k]
        ):
            k += 1
        assert data.accepted[row] == k


class Spy:
    """A suffix cache that notes how requests advance."""

    def __init__(self) -> None:
        self.inner = SuffixCache()
        self.grown: dict[str, list[int]] = {}
        self.running = 0
        self.most = 0

    def start(self, rid: str, prompt: NDArray[np.int32], scope: Hashable = None) -> None:
        self.inner.start(rid, prompt, scope)
        self.grown[rid] = []
        self.running += 1
        self.most = max(self.most, self.running)

    def extend(self, rid: str, tokens: NDArray[np.int32]) -> None:
        self.grown[rid] += tokens.tolist()
        self.inner.extend(rid, tokens)

    def extend_all(self, rids: Sequence[str], tokens: Sequence[NDArray[np.int32]]) -> None:
        for rid, new in zip(rids, tokens, strict=True):
            self.grown[rid] += new.tolist()
        self.inner.extend_all(rids, tokens)

    def draft(self, rids: Sequence[str], into: Observations, most: int) -> None:
        self.inner.draft(rids, into, most)

    def finish(self, rid: str) -> None:
        self.inner.finish(rid)
        self.running -= 1


@pytest.mark.parametrize("concurrency", [1, 5, 50])
def test_every_token_is_served_once_in_order(concurrency: int) -> None:
    traces = [*made_traces(9), trace("one", np.arange(3), np.arange(1))]
    spy = Spy()
    done: list[int] = []
    data = replay(traces, spy, concurrency=concurrency, progress=done.append)
    for index, one in enumerate(traces[:9]):
        assert spy.grown[str(index)] == one.output_ids.tolist()
    assert spy.running == 0
    assert spy.most == min(concurrency, 9)
    assert data.steps < sum(len(t.output_ids) for t in traces)  # some steps accept drafts


def rows_before(data: ReplayData, index: int, position: int) -> NDArray[np.float32]:
    past = (data.trace < index) | ((data.trace == index) & (data.position <= position))
    return FEATURES.compute(data.take(past).obs)


@pytest.mark.parametrize("mix", [EVERY_POSITION, StepMix(cache=0.0, model=0.5)])
def test_the_future_does_not_reach_the_past(mix: StepMix) -> None:
    traces = made_traces(6)
    cut = 20  # inside a copied stretch
    changed = traces[-1].output_ids.copy()
    changed[cut:] = np.random.default_rng(3).permutation(changed[cut:])
    other = [*traces[:-1], trace("x", traces[-1].prompt_ids, changed)]
    same = [replay(t, SuffixCache(), mix=mix, concurrency=1) for t in (traces, other)]
    # A row at ``position`` has seen the output's first ``position`` tokens.
    one, two = (rows_before(data, len(traces) - 1, cut) for data in same)
    assert len(one) > 100
    assert (one == two).all()
    assert same[0].accepted.tolist() != same[1].accepted.tolist()  # labels do look ahead


def test_verified_cache_drafts_do_not_look_ahead_either() -> None:
    traces = made_traces(6)
    mix = StepMix(cache=1.0, model=0.0)
    data = replay(traces, SuffixCache(), mix=mix, concurrency=1)
    last = len(traces) - 1
    rows = np.flatnonzero(data.trace == last)
    middle = rows[len(rows) // 2]
    cut = int(data.position[middle])
    changed = traces[-1].output_ids.copy()
    changed[cut:] = 5  # the answer goes on quite differently
    other = [*traces[:-1], trace("x", traces[-1].prompt_ids, changed)]
    again = replay(other, SuffixCache(), mix=mix, concurrency=1)
    assert (rows_before(data, last, cut) == rows_before(again, last, cut)).all()


def test_replay_repeats_itself() -> None:
    one, two = (replay(made_traces(), SuffixCache(), seed=4) for _ in range(2))
    assert (FEATURES.compute(one.obs) == FEATURES.compute(two.obs)).all()
    assert (one.accepted == two.accepted).all()
    empty = replay([], SuffixCache())
    assert empty.obs.rows == empty.steps == 0
