"""Measures step times on real decode steps before a server takes traffic; kept for later starts.

The launching process sends a few requests of its own as one of SGLang's warm-ups. The scheduler
knows them by their ids, runs them with the widths that are to be timed, and keeps the result in a
file that belongs to this machine, these models, this dtype and this SGLang. Only where a step's
wall time is its true time: on a CPU, with one rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridspec.adapters.base import Source
from hybridspec.adapters.cache_folder import step_times_folder
from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.gate.base import Decision
from hybridspec.gate.cost import SCHEMA, StepTimeModel
from hybridspec.gate.errors import GateError
from hybridspec.gate.profile import REPEATS, Shape, StepProfile

logger = logging.getLogger(__name__)

ENV = "HYBRIDSPEC_STEP_TIMES"
"""Environment variable that tells the scheduler which file holds, or shall hold, the times."""
WARMUP = "hybridspec_step_times"
RID_PREFIX = "hybridspec-step-times-"
ROWS = (1, 8, 32)
"""Row counts that are timed; those beyond what the server runs at once are cut to that."""
_MOST_WAITING = 0.6
"""Share of the measured time that threads may have waited for a processor: on two cores a server
alone was seen at 0.3, one beside a busy process at 0.95. Beyond it, the times say
more of the other processes than of the machine."""
_PROMPT = list(range(1, 17))
LONG_ROWS = 8
"""Rows whose steps are timed with long contexts too, cut like ``ROWS``."""
_LONG_PROMPT = 1024
"""Tokens of these contexts, at most a quarter of what a request or the server may hold; all rows
share their KV cache, so that one row's prefill is enough."""


def schedule(server_args: Any, widths: Sequence[int], seconds: float) -> None:
    """Have the times measured when this server starts, unless they are known.

    Args:
        server_args: SGLang's resolved arguments; the warm-up is added to them.
        widths: the verify widths.
        seconds: most time to spend on it.
    """
    path = step_times_folder() / f"{_identity(server_args, widths)}.json"
    os.environ[ENV] = str(path)
    if path.is_file():
        return
    # Its module is the HTTP server's, which only this process needs.
    from sglang.srt.entrypoints.warmup import warmup

    counts = _row_counts(server_args.max_running_requests)

    async def measure(disaggregation_mode: str, tokenizer_manager: Any) -> None:
        # Rows with EAGLE3's draft may accept all of it, the others decode one token a step.
        tokens = (len(widths) + 1 + server_args.speculative_num_steps) * REPEATS + 1
        share = seconds / (len(counts) + 1)
        for rows in counts:
            await _send(tokenizer_manager, _PROMPT, rows, tokens, share)
        limits = (server_args.context_length, server_args.max_total_tokens)
        length = min(_LONG_PROMPT, *(limit // 4 for limit in limits if limit))
        prompt = [1 + token % 256 for token in range(length)]
        await _send(tokenizer_manager, prompt, 1, 1, share)
        await _send(tokenizer_manager, prompt, _long_rows(counts), 2 * REPEATS + 1, share)

    warmup(WARMUP)(measure)
    others = (server_args.warmups or "").split(",")
    server_args.warmups = ",".join(name for name in [*others, WARMUP] if name)


async def _send(
    tokenizer_manager: Any, prompt: list[int], rows: int, tokens: int, seconds: float
) -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput

    ids = [f"{RID_PREFIX}{len(prompt)}-{rows}-{row}" for row in range(rows)]
    request = GenerateReqInput(
        input_ids=[prompt] * rows,
        rid=ids,
        sampling_params=[{"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}] * rows,
    )

    async def finish() -> None:
        async for _ in tokenizer_manager.generate_request(request, None):
            pass

    try:
        await asyncio.wait_for(finish(), seconds)
    except Exception as error:  # a server that cannot be measured still serves
        for rid in ids:
            tokenizer_manager.abort_request(rid)
        if not isinstance(error, TimeoutError):
            logger.warning("hybridspec: step times could not be measured: %s", error)


class StepProfiler:
    """The scheduler's side: decides the steps of the measuring requests and takes their times."""

    def __init__(
        self,
        path: Path,
        cost: StepTimeModel,
        *,
        widths: Sequence[int],
        model_steps: int,
        most_rows: int | None,
    ) -> None:
        """Prepare to measure into ``cost`` and ``path``."""
        self._path, self._cost, self._model_steps = path, cost, model_steps
        counts = _row_counts(most_rows)
        self._profile = StepProfile(counts, widths, model_steps, _long_rows(counts))
        self._running: Shape | None = None
        self._context = 0
        self._spent = 0.0
        self._waited: float | None = None

    def decide(self, requests: Sequence[Any]) -> Decision | None:
        """The decision for a step of measuring requests; None for any other batch."""
        self._running = None
        if not all(request.rid.startswith(RID_PREFIX) for request in requests):
            return None
        if self._waited is None:
            self._waited = _waited_for_processor()
        rows = len(requests)
        prompts = [len(request.origin_input_ids) for request in requests]
        self._context = sum(prompts) + sum(len(request.output_ids) for request in requests)
        shape = self._running = self._profile.next(rows, long=prompts[0] > len(_PROMPT))
        width, model = (shape.width, shape.model) if shape is not None else (1, False)
        source = Source.MODEL if model else Source.NONE
        return Decision(
            width,
            np.full(rows, source, np.int8),
            np.full(rows, self._model_steps if model else 0, np.int32),
        )

    def ran(self, seconds: float, extend: float) -> None:
        """Take in the time of the step that was decided last, and its draft-extend's alone."""
        if self._running is not None:
            self._profile.observe(self._running, self._context, seconds, extend)
            self._spent += seconds

    def conclude(self) -> None:
        """Use what was measured, show it and keep it for later starts."""
        found = self._profile.model(self._cost.prior)
        if found is None:
            logger.warning("hybridspec: too few steps were timed; the default profile is used")
            return
        self._cost.adopt(found)
        waited = _waited_for_processor() - (self._waited or 0.0)
        alone = waited <= _MOST_WAITING * self._spent
        logger.info(
            "hybridspec: step times measured in %.1f s (rows x width: ms; + with EAGLE3's draft, "
            "~ with long contexts): %s. %s",
            self._spent,
            ", ".join(
                f"{shape.rows}x{shape.width}{'+' * shape.model}{'~' * shape.long}: "
                f"{seconds * 1e3:.0f}"
                for shape, seconds in sorted(self._profile.times.items())
            ),
            f"Kept in {self._path}"
            if alone
            else f"Measured again at the next start: threads waited {waited:.1f} s for a processor",
        )
        if alone:
            self._keep(found)

    def _keep(self, found: StepTimeModel) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Another server may start now: it finds a whole file or none.
            partial = self._path.with_suffix(f".{os.getpid()}")
            found.save(partial)
            partial.replace(self._path)
        except OSError as error:
            logger.warning("hybridspec: step times cannot be kept in %s: %s", self._path, error)


def starting_times(
    settings: HybridConfig, device: str, *, model_steps: int, most_rows: int | None, timed: bool
) -> tuple[StepTimeModel, StepProfiler | None]:
    """The step times that a scheduler starts from, and what measures them first where arranged.

    Args:
        settings: of the server.
        device: ``cpu`` or a CUDA device.
        model_steps: EAGLE3's draft steps.
        most_rows: most requests that run at once, if known.
        timed: whether wall times of steps are true.
    """
    if settings.profile is not None:
        return StepTimeModel.named(settings.profile), None
    default = StepTimeModel.from_profile("cpu" if device == "cpu" else "h100")
    kept = os.environ.get(ENV)
    if not timed or kept is None:
        return default, None
    path = Path(kept)
    if path.is_file():
        try:
            return StepTimeModel.load(path), None
        except GateError as error:
            logger.warning("hybridspec: %s; the default profile is used", error)
            return default, None
    profiler = StepProfiler(
        path, default, widths=settings.widths, model_steps=model_steps, most_rows=most_rows
    )
    return default, profiler


def _row_counts(most: int | None) -> list[int]:
    return list(dict.fromkeys(min(rows, most or rows) for rows in ROWS))


def _long_rows(counts: Sequence[int]) -> int:
    return min(LONG_ROWS, counts[-1])


def _identity(server_args: Any, widths: Sequence[int]) -> str:
    """What step times belong to, as a short hash."""
    facts = {
        "schema": SCHEMA,
        "machine": [_processor(), len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")],
        "target": _model(server_args.model_path),
        "head": _model(server_args.speculative_draft_model_path),
        "steps": server_args.speculative_num_steps,
        "rows": _row_counts(server_args.max_running_requests),
        "dtype": str(server_args.dtype),
        "quantization": str(server_args.quantization),
        "sglang": importlib.metadata.version("sglang"),
        "widths": list(widths),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _model(path: str) -> list[str | int]:
    config = Path(path).expanduser() / "config.json"
    text = config.read_text() if config.is_file() else ""
    return [Path(path).name, hashlib.sha256(text.encode()).hexdigest()]


def _waited_for_processor() -> float:
    """Seconds that this process's threads were ready to run and did not; 0 where Linux does not
    tell."""
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited += int(thread.read_text().split()[1])
    return waited / 1e9


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
