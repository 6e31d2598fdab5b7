"""A prebuilt runtime state for every verify width, switched by reference from step to step.

An attention backend and a captured CUDA graph are made for one width. Each width of the ladder has
its own pair for the target's verify and for the head's draft-extend; drafting itself always runs in
the state that SGLang built (EAGLE3's own width), so wide states capture no draft graph. SGLang's
switch for its adaptive mode logs every change and keeps a list of them, so only its building blocks
are used. Graphs were not run on a GPU by the authors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_exec
from sglang.srt.speculative.adaptive_runtime_state import SpecRuntimeState
from sglang.srt.utils.common import get_available_gpu_memory

from hybridspec.adapters.sglang.draft_context import drafting

logger = logging.getLogger(__name__)

CAPTURED_TOKENS = 1024
"""Verified tokens of a batch, over all rows, up to which a width's graphs are captured. More is no
longer bound by launches, and graphs cost memory: a batch beyond runs without one, counted."""


class WidthStates:
    """All states of one worker; exactly one is in use."""

    def __init__(self, worker: Any) -> None:
        """Take SGLang's own state as the first one; call once its graphs are captured.

        Args:
            worker: SGLang's EAGLE3 worker, initialised.
        """
        self._worker = worker
        self._base = self._state(
            worker.speculative_num_draft_tokens,
            worker.target_worker.model_runner.attn_backend,
            worker.target_worker.model_runner.decode_cuda_graph_runner,
        )
        self._states = {worker.speculative_num_draft_tokens: self._base}
        self.captures = not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)

    def build(self, widths: Sequence[int]) -> None:
        """Build the states of ``widths``, and say what they cost."""
        for width in widths:
            if width not in self._states:
                self._states[width] = self._built(width)

    @contextmanager
    def using(self, width: int) -> Iterator[None]:
        """Verify and draft-extend at ``width`` inside; SGLang's own state is back afterwards."""
        self._use(self._states[width])
        try:
            yield
        finally:
            self._use(self._base)

    def _use(self, state: SpecRuntimeState) -> None:
        worker, drafter = self._worker, self._worker.draft_worker
        for each in (worker, drafter):
            each.speculative_num_steps = state.speculative_num_steps
            each.speculative_num_draft_tokens = state.speculative_num_draft_tokens
        target = worker.target_worker.model_runner
        target.attn_backend = state.target_attn_backend
        target.decode_cuda_graph_runner = state.target_graph_runner
        drafter.draft_extend_attn_backend = state.draft_extend_attn_backend
        if state.draft_extend_attn_backend is not None:
            drafter.draft_runner.attn_backend = state.draft_extend_attn_backend
        drafter.cuda_graph_runner_for_draft_extend = state.cuda_graph_runner_for_draft_extend

    def _built(self, width: int) -> SpecRuntimeState:
        worker, drafter = self._worker, self._worker.draft_worker
        sizes = self._batch_sizes(width)
        memory, began = get_available_gpu_memory(worker.device, worker.gpu_id), time.perf_counter()
        override = worker._override_worker_state(width - 1, width, cuda_graph_bs=sizes)
        with drafting(drafter), override:
            # With one step there is nothing to run for a draft, so no draft graph is captured.
            drafter.speculative_num_steps = 1
            drafter.init_attention_backend()
            drafter._capture_cuda_graphs()
            state = self._state(width, *self._target(width, sizes))
        if self.captures:
            used = memory - get_available_gpu_memory(worker.device, worker.gpu_id)
            logger.info(
                "hybridspec: width %d: graphs of %d batch sizes, %.2f GB, %.1f s",
                width,
                len(sizes or ()),
                used,
                time.perf_counter() - began,
            )
        return state

    def _target(self, width: int, sizes: list[int] | None) -> tuple[Any, Any]:
        """The target's attention backend and, with batch sizes to capture, its verify graph."""
        target = self._worker.target_worker.model_runner
        kept = target.init_new_workspace
        try:
            backend = target._get_attention_backend(init_new_workspace=True)
        finally:
            target.init_new_workspace = kept
        if not sizes:
            return backend, None
        runner = DecodeCudaGraphRunner(
            target,
            attn_backend=backend,
            speculative_num_steps=width - 1,
            speculative_num_draft_tokens=width,
        )
        return backend, runner

    def _state(self, width: int, backend: Any, runner: Any) -> SpecRuntimeState:
        drafter = self._worker.draft_worker
        return SpecRuntimeState(
            speculative_num_steps=width - 1,
            speculative_num_draft_tokens=width,
            draft_attn_backend=None,
            cuda_graph_runner=None,
            target_attn_backend=backend,
            target_graph_runner=runner,
            draft_extend_attn_backend=drafter.draft_extend_attn_backend,
            cuda_graph_runner_for_draft_extend=drafter.cuda_graph_runner_for_draft_extend,
        )

    def _batch_sizes(self, width: int) -> list[int] | None:
        """Batch sizes to capture at ``width``; None where nothing is captured."""
        if not self.captures:
            return None
        return [
            size
            for size in get_exec().graph.cuda_graph_bs_decode
            if size * width <= CAPTURED_TOKENS
        ]
