"""Replay of traces: what a server would have known at each step, and what came true.

Requests run in lock-step, several at a time, joining as others leave, over one drafter whose shared
tree grows as in service. Each step's rows are recorded before its tokens are revealed, with the
code that the server runs (:class:`Observations`, :class:`RequestHistory`); only the label looks
ahead. The drafter is injected: this module knows no suffix tree, and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.history import RequestHistory, agreement
from hybridspec.gate.observations import Observations
from hybridspec.gate.source import Source
from hybridspec.gate.traces import Trace

DEFAULT_K = 32


class Drafter(Protocol):
    """What replay needs of a suffix cache (see ``hybridspec.adapters.suffix.SuffixCache``)."""

    def start(self, rid: str, prompt: NDArray[np.int32], scope: Hashable = None) -> None: ...
    def extend(self, rid: str, tokens: NDArray[np.int32]) -> None: ...
    def extend_all(self, rids: Sequence[str], tokens: Sequence[NDArray[np.int32]]) -> None: ...
    def draft(self, rids: Sequence[str], into: Observations, most: int) -> None: ...
    def finish(self, rid: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StepMix:
    """How the replayed server advances: the chance that a step verifies the cache draft (if there
    is one) or EAGLE3's, else a plain step. A mix of all three, so that a gate does not learn one
    policy's step boundaries; the shares are a choice. ``model_rate``: EAGLE3's chance of each
    further token, up to ``model_steps``.
    """

    cache: float = 0.4
    model: float = 0.3
    model_rate: float = 0.6
    model_steps: int = 3


EVERY_POSITION = StepMix(cache=0.0, model=0.0)


@dataclass(frozen=True, slots=True)
class ReplayData:
    """Rows with a cache draft.

    Attributes:
        obs: what was known.
        accepted: int32 ``[rows]``, draft tokens that the true continuation has, at most K.
        trace: int32 ``[rows]``, index into the traces: the group to split by.
        position: int32 ``[rows]``, output tokens before the row.
        k: K.
        steps: steps replayed, those without a draft included.
    """

    obs: Observations
    accepted: NDArray[np.int32]
    trace: NDArray[np.int32]
    position: NDArray[np.int32]
    k: int
    steps: int

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> ReplayData:
        """The rows that ``index`` selects."""
        return ReplayData(
            self.obs.take(index),
            self.accepted[index],
            self.trace[index],
            self.position[index],
            self.k,
            self.steps,
        )

    @classmethod
    def concat(cls, parts: Sequence[ReplayData], k: int) -> ReplayData:
        """All rows of ``parts``, each of this ``k``, in order; no rows if there are no parts."""
        none = np.empty(0, np.int32)
        parts = [*parts, cls(Observations.allocate(0, k), none, none, none, k, 0)]
        return cls(
            Observations.concat([part.obs for part in parts]),
            np.concatenate([part.accepted for part in parts]),
            np.concatenate([part.trace for part in parts]),
            np.concatenate([part.position for part in parts]),
            k,
            sum(part.steps for part in parts),
        )


def drafted_rows(
    obs: Observations,
    accepted: NDArray[np.int32],
    trace: NDArray[np.int32],
    position: NDArray[np.int32],
) -> ReplayData:
    """One step's data: its rows that have a draft, of all its rows."""
    drafted = obs.length > 0
    depth = obs.tokens.shape[1]
    return ReplayData(
        obs.take(drafted), accepted[drafted], trace[drafted], position[drafted], depth, obs.rows
    )


def look_ahead(trace: Trace, position: int, window: NDArray[np.int32]) -> int:
    """Write the output tokens from ``position`` on into ``window``, padded with -1.

    Returns:
        How many output tokens are left, those beyond the window included.
    """
    ahead = trace.output_ids[position : position + len(window)]
    window[: len(ahead)] = ahead
    window[len(ahead) :] = -1
    return len(trace.output_ids) - position


def replay(
    traces: Sequence[Trace],
    drafter: Drafter,
    *,
    k: int = DEFAULT_K,
    concurrency: int = 8,
    mix: StepMix | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> ReplayData:
    """Serve ``traces`` again in order and record every row that has a cache draft.

    Args:
        traces: in order of arrival.
        drafter: empty; filled by the replay.
        k: longest draft asked for.
        concurrency: requests at a time.
        mix: how steps advance; ``EVERY_POSITION`` records each output position.
        seed: of the step mix.
        progress: told the number of finished traces now and then.
    """
    run = _Run(traces, drafter, k, concurrency, mix or StepMix(), np.random.default_rng(seed))
    parts: list[ReplayData] = []
    for part in run.steps():
        parts.append(part)
        if progress is not None and len(parts) % 256 == 0:
            progress(run.finished)
    return ReplayData.concat(parts, k)


class _Run:
    """The state of one replay: ``concurrency`` slots, each with a trace and a position in it."""

    def __init__(
        self,
        traces: Sequence[Trace],
        drafter: Drafter,
        k: int,
        concurrency: int,
        mix: StepMix,
        rng: np.random.Generator,
    ) -> None:
        self._traces, self._drafter, self._k, self._mix, self._rng = traces, drafter, k, mix, rng
        self._slot_trace = np.full(concurrency, -1, np.int32)
        self._slot_position = np.zeros(concurrency, np.int32)
        self._history = RequestHistory(concurrency)
        self._buffer = Observations.allocate(concurrency, k)
        self._truth = np.full((concurrency, k + 1), -1, np.int32)
        self._next = 0
        self.finished = 0

    def steps(self) -> Iterator[ReplayData]:
        """Serve all; yield each step's rows with a draft."""
        while True:
            self._admit()
            slots = np.flatnonzero(self._slot_trace >= 0)
            if not len(slots):
                return
            obs, truth, left = self._look(slots)
            accepted = agreement(obs.tokens, obs.length, truth, left)
            yield drafted_rows(obs, accepted, self._slot_trace[slots], self._slot_position[slots])
            self._advance(slots, obs, truth, left, accepted)

    def _admit(self) -> None:
        """Prefill waiting traces into free slots; prefill yields the first output token."""
        for slot in np.flatnonzero(self._slot_trace < 0):
            while self._next < len(self._traces) and len(self._traces[self._next].output_ids) < 2:
                self._next += 1  # nothing is left to decode after prefill
                self.finished += 1
            if self._next == len(self._traces):
                return
            trace, rid = self._traces[self._next], str(self._next)
            self._drafter.start(rid, trace.prompt_ids, trace.scope)
            self._drafter.extend(rid, trace.output_ids[:1])
            self._slot_trace[slot], self._slot_position[slot] = self._next, 1
            self._history.reset(np.array([slot]))
            self._next += 1

    def _look(
        self, slots: NDArray[np.intp]
    ) -> tuple[Observations, NDArray[np.int32], NDArray[np.int32]]:
        """Drafts and facts of the running rows, their next K+1 true tokens, how many are left."""
        truth = self._truth[: len(slots)]
        left = np.empty(len(slots), np.int32)
        obs = self._buffer.head(len(slots))
        running = self._slot_trace[slots].tolist()
        self._drafter.draft([str(index) for index in running], obs, self._k)
        positions = self._slot_position[slots].tolist()
        for row, (index, position) in enumerate(zip(running, positions, strict=True)):
            trace = self._traces[index]
            obs.put(row, trace.output_ids[position - 1], len(trace.prompt_ids), position)
            left[row] = look_ahead(trace, position, truth[row])
        obs.history[:] = self._history.read(slots)
        return obs, truth, left

    def _advance(
        self,
        slots: NDArray[np.intp],
        obs: Observations,
        truth: NDArray[np.int32],
        left: NDArray[np.int32],
        matched: NDArray[np.int32],
    ) -> None:
        """Choose each row's source, reveal the tokens of its step and close finished requests."""
        draw = self._rng.random(len(slots))
        cache = (draw < self._mix.cache) & (obs.length > 0)
        model = ~cache & (draw < self._mix.cache + self._mix.model)
        guessed = self._rng.geometric(1.0 - self._mix.model_rate, len(slots)) - 1
        accepted = np.where(cache, matched, np.where(model, guessed, 0))
        accepted = np.where(model, np.minimum(accepted, self._mix.model_steps), accepted)
        count = np.minimum(accepted + 1, left).astype(np.int32)
        source = np.where(cache, Source.CACHE, np.where(model, Source.MODEL, Source.NONE))
        self._history.update(
            slots,
            obs.tokens,
            obs.length,
            truth,
            count,
            source.astype(np.int8),
            np.minimum(accepted, count).astype(np.int32),
        )
        running = [str(index) for index in self._slot_trace[slots]]
        self._drafter.extend_all(running, [truth[row, :new] for row, new in enumerate(count)])
        self._slot_position[slots] += count
        ended = slots[count == left]
        for index in self._slot_trace[ended].tolist():
            self._drafter.finish(str(index))
        self._slot_trace[ended] = -1
        self.finished += len(ended)
