"""Collect traces from a running server: the tokens of prompts and greedy outputs.

Drafts do not change a greedy output, so any algorithm may serve; the fastest one saves time.
Replaying the traces is the gate's job, not this module's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hybridspec.gate.traces import SUFFIX, Trace, write_traces
from hybridspec.loadtest.client import Client
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
    tokenizer: Any = None,
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
        tokenizer: the target's (Hugging Face), for a server that is not SGLang: answers are asked
            for as text through ``/v1/chat/completions`` and tokenized here, which gives the
            server's tokens but for rare texts that have two tokenizations.

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
        for number, batch in enumerate(_batches(requests, 4 * streams)):
            limits = [max_tokens or request.max_tokens for request in batch]
            if tokenizer is None:
                traces = _ask_sglang(client, batch, limits, streams)
            else:
                traces = _ask_any(client, batch, limits, streams, tokenizer)
            write_traces(out / f"part-{number:05d}{SUFFIX}", traces)
            written += len(batch)
    return written


def _ask_sglang(
    client: Client, batch: Sequence[Request], limits: Sequence[int], streams: int
) -> list[Trace]:
    prompts = [client.tokenize(request.messages) for request in batch]
    run = client.run(prompts, max_tokens=limits, streams=streams)
    return [
        _trace(request, prompt, answer.output_ids, answer.finish_reason)
        for request, prompt, answer in zip(batch, prompts, run.answers, strict=True)
    ]


def _ask_any(
    client: Client,
    batch: Sequence[Request],
    limits: Sequence[int],
    streams: int,
    tokenizer: Any,
) -> list[Trace]:
    with ThreadPoolExecutor(max_workers=streams) as pool:
        jobs = [
            pool.submit(client.chat, request.messages, max_tokens=limit)
            for request, limit in zip(batch, limits, strict=True)
        ]
        answers = [job.result() for job in jobs]
    traces = []
    for request, answer in zip(batch, answers, strict=True):
        messages = [dict(message) for message in request.messages]
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        prompt = tokenizer.encode(rendered, add_special_tokens=False)
        output = tokenizer.encode(answer.text, add_special_tokens=False)
        if answer.finish_reason == "stop" and tokenizer.eos_token_id is not None:
            output.append(tokenizer.eos_token_id)
        traces.append(_trace(request, prompt, output, answer.finish_reason))
    return traces


def _trace(request: Request, prompt: Sequence[int], output: Sequence[int], finish: str) -> Trace:
    return Trace(
        id=request.id,
        workload=request.workload,
        kind=request.kind,
        prompt_ids=np.array(prompt, np.int32),
        output_ids=np.array(output, np.int32),
        finish=finish,
    )


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]
