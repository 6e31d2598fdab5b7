"""Watches a gate folder while a server runs and offers what replaces it, checked.

A gate is loaded, probed and timed in a thread of its own; whoever predicts asks between two steps
for a finished one and pays a comparison where there is none. A gate that is refused leaves the old
one in place and is not tried again until the folder changes. Decides nothing and logs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np

from hybridspec.gate.errors import GateError
from hybridspec.gate.manifest import MANIFEST_FILE, MODEL_FILE, TOKENS_FILE
from hybridspec.gate.store import Gate, load_gate

_FILES = (MANIFEST_FILE, MODEL_FILE, TOKENS_FILE)
# A gate is slow if it takes this many seconds for so many rows at its fastest of a few tries: the
# embedded target's whole step takes ten times as long, and the demo's gate a fiftieth.
_PROBE_ROWS, _PROBE_TRIES, SLOWEST_S = 64, 8, 5e-3

# Inode, size and time of change of each file; None for a missing one.
_Signature = tuple[tuple[int, int, int] | None, ...]


class GateWatch:
    """Looks at one folder every ``poll_s`` seconds once started.

    Args:
        folder: the gate folder. Files may be copied into it one after the other, or it may be
            replaced, or be a link that is set anew: what counts is that it rests for one look.
        current: the gate in use, loaded from there.
        max_rows: most rows of one prediction.
        device: where gates run, as :func:`load_gate` takes it.
        refused: told the one-line reason for each refused gate, from the watching thread.
        poll_s: seconds between two looks.
    """

    def __init__(
        self,
        folder: Path,
        current: Gate,
        *,
        max_rows: int,
        device: str = "cpu",
        refused: Callable[[str], None],
        poll_s: float = 1.0,
    ) -> None:
        self._folder = folder
        self._k = current.k
        self._known = current.manifest.sha256
        self._max_rows, self._device = max_rows, device
        self._refused = refused
        self._poll_s = poll_s
        self._seen = self._settled = self._look()
        self._ready: Gate | None = None
        self._stop = Event()

    def start(self) -> None:
        """Watch from a daemon thread until :meth:`stop`."""
        Thread(target=self._watch, name="hybridspec-gate-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread at its next look."""
        self._stop.set()

    def take(self) -> Gate | None:
        """The replacement, once; None as long as there is none."""
        if self._ready is None:
            return None
        gate, self._ready = self._ready, None
        return gate

    def poll(self) -> None:
        """Look once. What changed is loaded at the second look that finds it the same."""
        found = self._look()
        rests, self._seen = found == self._seen, found
        if not rests or found == self._settled:
            return
        self._settled = found
        try:
            gate = load_gate(
                self._folder, provider=self._device, max_rows=self._max_rows, k=self._k
            )
            _check_speed(gate)
        except GateError as error:
            self._refused(str(error))
            return
        if gate.manifest.sha256 != self._known:
            self._known = gate.manifest.sha256
            self._ready = gate

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self.poll()
            except Exception as error:  # a broken disk must not end the watching
                self._refused(f"gate: {self._folder}: {type(error).__name__}: {error}")

    def _look(self) -> _Signature:
        return tuple(_stamp(self._folder / name) for name in _FILES)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_speed(gate: Gate) -> None:
    """Refuse a gate that would slow every step down; the first calls are not counted."""
    matrix = np.ones((_PROBE_ROWS, len(gate.features)), np.float32)
    times = []
    for _ in range(_PROBE_TRIES):
        started = time.perf_counter()
        gate.predict(matrix)
        times.append(time.perf_counter() - started)
    if min(times) > SLOWEST_S:
        raise GateError(
            f"gate: {min(times) * 1e3:.1f} ms for {_PROBE_ROWS} rows, at most "
            f"{SLOWEST_S * 1e3:.0f} ms are allowed; train a smaller one"
        )
