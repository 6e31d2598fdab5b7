"""Collect traces from a running server: the tokens of prompts and greedy outputs.

One JSON line per answer: ``{"id", "workload", "kind", "prompt_ids", "output_ids"}``. Drafts do not
change a greedy output, so any algorithm may serve; the fastest one saves time. Replaying the traces
is the gate's job, not this module's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hybridspec.loadtest.client import Client
from hybridspec.loadtest.workloads import Request, load


def trace_record(
    request: Request, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> dict[str, Any]:
    """One trace as it is written."""
    return {
        "id": request.id,
        "workload": request.workload,
        "kind": request.kind,
        "prompt_ids": list(prompt_ids),
        "output_ids": list(output_ids),
    }


def collect(
    url: str,
    workloads: Sequence[str | Path],
    out: Path,
    *,
    max_tokens: int | None = None,
    streams: int = 8,
    limit: int | None = None,
    seed: int | None = None,
) -> int:
    """Send every prompt of the workloads to a server and write the traces.

    Traces are written a batch at a time, so an interrupted run keeps what it has.

    Args:
        url: address of the server.
        workloads: bundled names, files or folders.
        out: JSON-lines file; replaced.
        max_tokens: most tokens per answer; the workload's own limit by default.
        streams: requests in flight at a time.
        limit: stop after so many prompts.
        seed: shuffle each workload with this seed; None keeps the order of the files.

    Returns:
        How many traces were written.

    Raises:
        BadWorkload: a workload cannot be loaded.
        RequestFailed: the server refused a request, or is gone.
    """
    requests = [request for name in workloads for request in load(name, seed=seed)][:limit]
    out.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with Client(url) as client, out.open("w", encoding="utf-8") as file:
        for batch in _batches(requests, 4 * streams):
            prompts = [client.tokenize(request.messages) for request in batch]
            limits = [max_tokens or request.max_tokens for request in batch]
            run = client.run(prompts, max_tokens=limits, streams=streams)
            for request, prompt, answer in zip(batch, prompts, run.answers, strict=True):
                record = trace_record(request, prompt, answer.output_ids)
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
            file.flush()
            written += len(batch)
    return written


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]
