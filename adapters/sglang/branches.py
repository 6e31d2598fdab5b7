"""Steps in which rows verify two branches: what SGLang is told, and what came of each branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_common import _finalize_accept_tree_path

from hybridspec.adapters.sglang.merged_tree import BRANCHES, MergedTrees, tree_input
from hybridspec.adapters.sglang.step_plan import StepPlan

BACKENDS = ("flashinfer", "triton", "portable")
"""Attention backends whose verify takes any tree from its mask (read in SGLang 0.5.23, where
``fa3`` is prepared for one branching factor at start; ``portable`` is ours for CPUs)."""


def problem(backends: Sequence[str], page_size: int) -> str | None:
    """Why rows cannot have two branches, if they cannot."""
    other = [name for name in backends if name not in BACKENDS]
    if other:
        return f"attention backend {other[0]} verifies chains alone"
    return "a page size above 1" if page_size > 1 else None


@dataclass(frozen=True, slots=True)
class _Step:
    """What is verified: the width, the last node of every row's first branch (among all nodes),
    EAGLE3's draft, and which of its tokens."""

    width: int
    cache_ends: torch.Tensor
    chain: torch.Tensor
    verifies: torch.Tensor


class Branches:
    """Builds the trees of one worker's step and takes their outcome in."""

    def __init__(self, worker: Any) -> None:
        """``worker``: SGLang's EAGLE3 worker."""
        self._worker = worker
        self._trees = MergedTrees()
        self._step: _Step | None = None

    def build(
        self,
        plan: StepPlan,
        batch: ScheduleBatch,
        bonus: torch.Tensor,
        draft: torch.Tensor,
        chain: torch.Tensor,
    ) -> EagleVerifyInput:
        """The verify input of a plan with branches; SGLang's verification is told that there are.
        To be called inside of :meth:`step`.

        Args:
            plan: of the step.
            batch: SGLang's.
            bonus: ``[rows]``, last committed token of each row.
            draft: int64 ``[rows, width - 1]``, every row's first branch.
            chain: int64 ``[rows, model_length]``, EAGLE3's draft.
        """
        device, width = draft.device, plan.width
        assert plan.branch is not None
        lengths = np.stack((plan.length, plan.branch)).astype(np.int64)
        cache, branch = torch.from_numpy(lengths).to(device, non_blocking=True)
        starts = torch.arange(0, len(plan.length) * width, width, device=device)
        verifies = torch.arange(chain.shape[1], device=device) < branch[:, None]
        self._step = _Step(width, starts + cache, chain, verifies)
        if chain.is_cuda:
            # There SGLang moves every accepted path to its row's front, without looking at it.
            self._worker.topk = BRANCHES
        tree = self._trees.merge(bonus.long(), draft, cache, chain, branch)
        backend = self._worker.target_worker.model_runner.attn_backend
        return tree_input(tree, batch.seq_lens, batch.seq_lens_sum, backend)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step, in which rows may have branches once :meth:`build` was called; afterwards they
        are chains again."""
        try:
            yield
        finally:
            self._worker.topk = 1
            self._step = None

    def verified(self, batch: ScheduleBatch, result: Any) -> torch.Tensor | None:
        """Take in what was accepted, before the draft-extend, for which all rows are chains again.

        Returns:
            int32 ``[2, rows]`` on the device: whether EAGLE3's branch was accepted, and how many
            tokens of EAGLE3's draft came true, in whichever branch; None for a step without.
        """
        self._worker.topk = 1
        step, rows = self._step, len(batch.reqs)
        if step is None:
            return None
        # Nodes of an accepted path ascend, and those of EAGLE3's branch come last.
        of_model = result.accept_index.amax(1) > step.cache_ends
        if not of_model.is_cuda and bool(of_model.any()):
            result.next_token_ids = _finalize_accept_tree_path(
                batch,
                result.accept_index,
                result.accept_lens,
                result.next_token_ids,
                result.logits_output,
                rows,
                token_to_kv_pool_allocator=self._worker.token_to_kv_pool_allocator,
                num_draft_tokens=step.width,
            )
        said = result.next_token_ids.view(rows, step.width)[:, : step.chain.shape[1]]
        hits = ((said == step.chain) & step.verifies).cumprod(1).sum(1)
        return torch.stack((of_model, torch.minimum(hits, result.accept_lens - 1))).int()
