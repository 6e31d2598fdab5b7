"""Collect traces from a running server: the tokens of prompts and greedy outputs.

Drafts do not change a greedy output, so any algorithm may serve; the fastest one saves time.
Replaying the traces is the gate's job, not this module's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hybridspec.gate.traces import SUFFIX, Trace, write_traces
from hybridspec.loadtest.client import Answer, Client
from hybridspec.loadtest.workloads import Request, load


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

    Traces are written a batch at a time, a file each, so an interrupted run keeps what it has.

    Args:
        url: address of the server.
        workloads: bundled names, files or folders.
        out: folder of the trace set; traces that are there are replaced.
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
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"*{SUFFIX}"):
        old.unlink()
    written = 0
    with Client(url) as client:
        model = str(client.server_info().get("model_path", ""))
        for number, batch in enumerate(_batches(requests, 4 * streams)):
            prompts = [client.tokenize(request.messages) for request in batch]
            limits = [max_tokens or request.max_tokens for request in batch]
            run = client.run(prompts, max_tokens=limits, streams=streams)
            answered = zip(batch, prompts, run.answers, strict=True)
            traces = [_trace(*each, model) for each in answered]
            write_traces(out / f"part-{number:05d}{SUFFIX}", traces)
            written += len(batch)
    return written


def _trace(request: Request, prompt: Sequence[int], answer: Answer, model: str) -> Trace:
    return Trace(
        id=request.id,
        workload=request.workload,
        kind=request.kind,
        prompt_ids=np.array(prompt, np.int32),
        output_ids=np.array(answer.output_ids, np.int32),
        model=Path(model).name,
        finish=answer.finish_reason,
    )


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]
