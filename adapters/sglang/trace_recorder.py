"""Records served requests as traces, for training gates. Off unless a folder is given.

The scheduler's thread only appends numbers and hands finished requests to a queue; another thread
writes files. A full queue or disk loses traces, which is counted, and never holds a request up.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.traces import SUFFIX, Steps, Trace, write_traces

logger = logging.getLogger(__name__)

FILE_TRACES, FILE_SECONDS = 256, 5.0
"""A file is written when so many traces wait, or so long after the first of them."""
QUEUED = 4096
"""Finished requests that may wait for the writer."""
FLUSH_SECONDS = 10.0
"""How long an ending server waits for the last file."""

# index, row, position, source, width, proposed, accepted
_Row = tuple[int, int, int, int, int, int, int]


@dataclass(slots=True)
class _Open:
    rows: list[_Row] = field(default_factory=list)
    features: list[NDArray[np.float32]] = field(default_factory=list)


class TraceRecorder:
    """One per scheduler process; of several ranks, the one that decides has it.

    Args:
        folder: of the trace set; made if need be. Files of earlier lives stay there and count
            towards the budget.
        sample: share of requests to record, chosen by their ids.
        budget_bytes: the oldest files go when there is more.
        features: names of the features that :meth:`step` is given; empty if none.
        model: name of the target.
        lost: told how many traces could not be kept, from either thread.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sample: float,
        budget_bytes: int,
        features: Sequence[str],
        model: str,
        lost: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._threshold = sample * 2**32
        self._budget = budget_bytes
        self._features = tuple(features)
        self._model = model
        self._lost = lost
        self._open: dict[str, _Open] = {}
        self._queue: queue.Queue[Trace | None] = queue.Queue(QUEUED)
        self._files = 0
        self._complained = False
        # Names sort in order of time, over the lives of several servers too.
        self._name = f"{time.time_ns():019d}-{os.getpid()}"
        self._writer = Thread(target=self._write, name="hybridspec-traces", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    def step(
        self,
        index: int,
        rids: Sequence[str],
        position: NDArray[np.int32],
        source: NDArray[np.int8],
        width: int,
        proposed: NDArray[np.int32],
        accepted: NDArray[np.int32],
        features: NDArray[np.float32] | None,
    ) -> None:
        """Take in one verified step; all arrays ``[rows]``, ``features`` ``[rows, features]``."""
        for row, rid in enumerate(rids):
            known = self._open.get(rid)
            if known is None:
                if zlib.crc32(rid.encode()) >= self._threshold:
                    continue
                known = self._open[rid] = _Open()
            known.rows.append(
                (
                    index,
                    row,
                    int(position[row]),
                    int(source[row]),
                    width,
                    int(proposed[row]),
                    int(accepted[row]),
                )
            )
            if features is not None:
                known.features.append(features[row].copy())

    def finish(
        self,
        rid: str,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
        scope: str | None,
        finish: str,
    ) -> None:
        """A request ended: hand it to the writer, unless it was not sampled."""
        known = self._open.pop(rid, None)
        if known is None:
            return
        columns = np.array(known.rows, np.int64).reshape(-1, 7).T
        steps = Steps(
            index=columns[0],
            row=columns[1].astype(np.int32),
            position=columns[2].astype(np.int32),
            source=columns[3].astype(np.int8),
            width=columns[4].astype(np.int16),
            proposed=columns[5].astype(np.int16),
            accepted=columns[6].astype(np.int16),
            features=np.stack(known.features) if known.features else None,
        )
        trace = Trace(rid, "served", "", prompt, output, scope, self._model, finish, steps)
        try:
            self._queue.put_nowait(trace)
        except queue.Full:
            self._lost(1)

    def drop(self, rid: str) -> None:
        """A request vanished: forget it."""
        self._open.pop(rid, None)

    def close(self) -> None:
        """Write what waits and end the writer."""
        atexit.unregister(self.close)
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._writer.join(FLUSH_SECONDS)

    def _write(self) -> None:
        waiting: list[Trace] = []
        due = 0.0
        ended = False
        while not ended:
            try:
                timeout = max(0.0, due - time.monotonic()) if waiting else None
                trace = self._queue.get(timeout=timeout)
                ended = trace is None
                if trace is not None:
                    due = due if waiting else time.monotonic() + FILE_SECONDS
                    waiting.append(trace)
            except queue.Empty:
                pass
            if waiting and (ended or len(waiting) >= FILE_TRACES or time.monotonic() >= due):
                self._write_file(waiting)
                waiting = []

    def _write_file(self, traces: list[Trace]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self._name}-{self._files:06d}{SUFFIX}"
            write_traces(path, traces, self._features)
            self._files += 1
            self._keep_to_budget()
        except (OSError, GateError, ValueError) as error:
            self._lost(len(traces))
            if not self._complained:
                self._complained = True
                logger.warning(
                    "hybridspec: traces cannot be written to %s: %s. Requests go on; lost traces "
                    "are counted in hybridspec_traces_lost_total, this is logged only once.",
                    self._folder,
                    error,
                )

    def _keep_to_budget(self) -> None:
        files = sorted(self._folder.glob(f"*{SUFFIX}"))
        sizes = [file.stat().st_size for file in files]
        total = sum(sizes)
        for file, size in zip(files, sizes, strict=True):
            if total <= self._budget:
                return
            file.unlink()
            total -= size
