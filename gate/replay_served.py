"""Replay of recorded traces along the steps that the server really took.

The same calls in the same order as in the server's planner, so trees, history and features are the
server's, bit for bit, if every request of its life was recorded and none was evicted or flushed.
Use :func:`hybridspec.gate.replay.replay` to see other step boundaries than those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.history import RequestHistory, agreement, pad
from hybridspec.gate.observations import Observations
from hybridspec.gate.replay import DEFAULT_K, Drafter, ReplayData, drafted_rows, look_ahead
from hybridspec.gate.traces import Steps, Trace


@dataclass(slots=True)
class _Running:
    """A request between its first and its last recorded step."""

    trace: Trace
    steps: Steps
    number: int  # index into the traces; its history slot too
    done: int = 0  # steps planned so far
    given: int = 0  # output tokens that the drafter has
    last_row: int = 0

    @property
    def rid(self) -> str:
        return str(self.number)

    def tokens_to(self, position: int) -> NDArray[np.int32]:
        fresh: NDArray[np.int32] = self.trace.output_ids[self.given : position]
        self.given = position
        return fresh


def replay_served(traces: Sequence[Trace], drafter: Drafter, *, k: int = DEFAULT_K) -> ReplayData:
    """Plan every recorded step again and keep the rows that have a cache draft, in server order.

    Args:
        traces: of one server's life; those without steps are left out.
        drafter: empty, with the server's settings; filled by the replay.
        k: longest draft asked for, the server's.
    """
    run = _ServedRun(traces, drafter, k)
    return ReplayData.concat(list(run.steps()), k)


class _ServedRun:
    def __init__(self, traces: Sequence[Trace], drafter: Drafter, k: int) -> None:
        self._drafter, self._k = drafter, k
        self._all = [
            _Running(trace, trace.steps, number)
            for number, trace in enumerate(traces)
            if trace.steps is not None and len(trace.steps)
        ]
        self._history = RequestHistory(max(1, len(traces)))
        self._open: list[_Running] = []

    def steps(self) -> Iterator[ReplayData]:
        before: list[_Running] = []
        obs: Observations | None = None
        for _, group in groupby(self._in_order(), key=lambda event: event[0]):
            rows = [running for _, _, running in group]
            self._close_ended(set(map(id, rows)))
            fresh = self._advance(rows)
            self._learn(before, obs, rows, fresh)
            obs, truth, left = self._look(rows)
            yield drafted_rows(
                obs,
                agreement(obs.tokens, obs.length, truth, left),
                np.array([running.number for running in rows], np.int32),
                np.array([running.given for running in rows], np.int32),
            )
            for at, running in enumerate(rows):
                running.done += 1
                running.last_row = at
            before = rows

    def _in_order(self) -> list[tuple[int, int, _Running]]:
        """(step, row, request) of every row of every step."""
        events = [
            (int(step), int(row), running)
            for running in self._all
            for step, row in zip(running.steps.index, running.steps.row, strict=True)
        ]
        return sorted(events, key=lambda event: event[:2])

    def _close_ended(self, planned: set[int]) -> None:
        """Requests end after their last step and before the next plan, in row order."""
        ended = [
            running
            for running in self._open
            if running.done == len(running.steps) and id(running) not in planned
        ]
        for running in sorted(ended, key=lambda each: (each.steps.index[-1], each.last_row)):
            if running.trace.finish != "abort":
                self._drafter.extend(running.rid, running.tokens_to(len(running.trace.output_ids)))
                self._drafter.finish(running.rid)
            self._open.remove(running)

    def _advance(self, rows: list[_Running]) -> list[NDArray[np.int32]]:
        """Give the drafter what was known when the step was planned; the tokens of the last one."""
        for running in rows:
            if running.done == 0:
                self._drafter.start(running.rid, running.trace.prompt_ids, running.trace.scope)
                self._open.append(running)
        fresh = [running.tokens_to(int(running.steps.position[running.done])) for running in rows]
        self._drafter.extend_all([running.rid for running in rows], fresh)
        return fresh

    def _learn(
        self,
        before: list[_Running],
        obs: Observations | None,
        rows: list[_Running],
        fresh: list[NDArray[np.int32]],
    ) -> None:
        """Take the last planned step into the history of the rows that go on."""
        if obs is None:
            return
        now = {id(running): at for at, running in enumerate(rows)}
        kept = [at for at, running in enumerate(before) if id(running) in now]
        if not kept:
            return
        padded, count = pad([fresh[now[id(before[at])]] for at in kept])
        ran = [(before[at].steps, before[at].done - 1) for at in kept]
        known = obs.take(np.array(kept))
        self._history.update(
            np.array([before[at].number for at in kept]),
            known.tokens,
            known.length,
            padded,
            count,
            np.array([steps.source[at] for steps, at in ran], np.int8),
            np.array([steps.accepted[at] for steps, at in ran], np.int32),
        )

    def _look(
        self, rows: list[_Running]
    ) -> tuple[Observations, NDArray[np.int32], NDArray[np.int32]]:
        obs = Observations.allocate(len(rows), self._k)
        truth = np.empty((len(rows), self._k + 1), np.int32)
        left = np.empty(len(rows), np.int32)
        self._drafter.draft([running.rid for running in rows], obs, self._k)
        for at, running in enumerate(rows):
            trace, position = running.trace, running.given
            last = trace.output_ids[position - 1] if position else trace.prompt_ids[-1]
            obs.put(at, int(last), len(trace.prompt_ids), position)
            left[at] = look_ahead(trace, position, truth[at])
        obs.history[:] = self._history.read(np.array([running.number for running in rows]))
        return obs, truth, left
