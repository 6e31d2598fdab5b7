"""Counts the waits for a device in a profiler's trace of decode steps."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path

WAITS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "aten::_local_scalar_dense",
    "aten::nonzero",
)
"""Events in which the host waits for the device; the last two do so for device tensors."""


def decode_trace(folder: Path) -> Path | None:
    """The trace of decode steps that a server has begun to write into ``folder``. Prefills have a
    file of their own, whether asked for or not."""
    return next(folder.rglob("*DECODE*.json.gz"), None)


def wait_for_trace(folder: Path, timeout_s: float) -> Path | None:
    """The trace of decode steps, once it is whole; None if none comes."""
    deadline = time.monotonic() + timeout_s
    size = -1
    while time.monotonic() < deadline:
        found = decode_trace(folder)
        if found is not None and size == (now := found.stat().st_size) and now:
            return found
        size = found.stat().st_size if found is not None else -1
        time.sleep(1.0)
    return None


def count(trace: Path, steps: int) -> dict[str, float]:
    """Waits of each kind a step, those that happen at all."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    seen = Counter(event.get("name") for event in events if event.get("ph") == "X")
    return {name: seen[name] / steps for name in WAITS if seen[name]}
