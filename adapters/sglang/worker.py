"""The HYBRID speculative worker: SGLang's EAGLE3 worker with the draft of each step chosen by us.

Only the drafting half of a decode step is ours, and when EAGLE3's draft-extend runs. Prefill,
target verify, sampling and every scheduler contract stay SGLang's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.layers.moe.utils import (
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.spec_utils import draft_tp_context, spec_stage_span

from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang import config, min_p
from hybridspec.adapters.sglang.chain import ChainBuilder
from hybridspec.adapters.sglang.draft_extend import DraftExtend
from hybridspec.adapters.sglang.plan_channel import PlanChannel
from hybridspec.adapters.sglang.planner import StepPlanner
from hybridspec.adapters.sglang.step_plan import StepPlan


class HybridWorker(EAGLEWorkerV2):  # type: ignore[misc]
    """Drafts from the suffix cache, EAGLE3 or nothing, row by row, and verifies one chain width."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self._steps = self.speculative_num_steps
        self._chains = ChainBuilder(self.device)
        self._draft_extend = DraftExtend(self.draft_worker, self._stub_skipped_draft_extend)
        tp = get_tp_group() if get_parallel().tp_size > 1 else None
        widest = config.current().widths[-1]
        self._channel = PlanChannel(tp.cpu_group, tp.ranks[0], widest) if tp else None
        self._planner: StepPlanner | None = None  # another rank decides
        if self._channel is None or self._channel.leads:
            self._planner = StepPlanner(
                config.current(),
                model_steps=self._steps,
                device=str(self.device),
                # A step's wall time is its true time only where it runs synchronously.
                times_steps=str(self.device) == "cpu",
                model=Path(server_args.model_path).name,
                most_rows=server_args.max_running_requests,
            )

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Any = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """One step of a batch; decode steps are drafted here, all else is passed on unchanged."""
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle() or not batch.reqs:
            if self._planner is not None:
                self._planner.interrupted()
            return super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
        started = time.perf_counter()
        first = self._free_model_token(batch)
        plan = self._plan(batch, first)
        self._draft_extend.due = plan.extend
        batch.spec_info = self._verify_input(batch, plan, first)
        with self._verifying(plan.width), min_p.during(batch.sampling_info):
            result = super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
        if self._planner is not None:
            self._planner.ran(started, time.perf_counter(), self._draft_extend.seconds)
        return result

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], batch_size: int = 0
    ) -> None:
        """Called with each row's accepted length (bonus excluded) once it is on the host."""
        if self._planner is not None:
            self._planner.settle(num_correct_drafts_per_req)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Called when a request ends for any reason, aborts included."""
        if self._planner is not None:
            self._planner.finish(rid)

    def clear_cache_pool(self) -> None:
        """Called on ``/flush_cache``, refused while requests run or wait: the suffix cache forgets
        as the radix cache does."""
        super().clear_cache_pool()
        if self._planner is not None:
            self._planner.clear()

    def weights_changed(self) -> None:
        """Called when new weights are in place: drafts of what the old ones said are dropped."""
        if self._planner is not None:
            self._planner.flush()

    def _plan(self, batch: ScheduleBatch, first: torch.Tensor) -> StepPlan:
        """This step's plan: decided here, or by the first rank."""
        if self._planner is None:
            assert self._channel is not None
            return self._channel.receive(len(batch.reqs))
        on_host = first.device.type == "cpu"  # elsewhere, reading it would wait for the device
        plan = self._planner.plan(batch.reqs, first.numpy() if on_host else None)
        if self._channel is not None:
            self._channel.send(plan)
        return plan

    def _verify_input(
        self, batch: ScheduleBatch, plan: StepPlan, first: torch.Tensor
    ) -> EagleVerifyInput:
        # EagleDraftInput of the last draft-extend; drafting must not see ours in its place.
        state = batch.spec_info
        draft = torch.from_numpy(plan.tokens).to(self.device, torch.int64, non_blocking=True)
        if plan.model_length:
            chain = self._model_chain(batch) if plan.model_forward else first[:, None]
            chain = chain[:, : plan.model_length]
            of_model = torch.from_numpy(plan.source == Source.MODEL).to(self.device)[:, None]
            columns = draft[:, : chain.shape[1]]
            columns.copy_(torch.where(of_model, chain, columns))
        return self._chains.build(
            state.bonus_tokens,
            draft,
            plan.length,
            batch.seq_lens,
            batch.seq_lens_sum,
            self.target_worker.model_runner.attn_backend.verify_mask,
        )

    def _free_model_token(self, batch: ScheduleBatch) -> torch.Tensor:
        """The first token of EAGLE3's chain, int64 ``[rows]``: draft-extend has predicted it."""
        first: torch.Tensor = batch.spec_info.topk_index[:, 0]
        hot = self.draft_worker.hot_token_id
        return first if hot is None else hot[first]

    def _model_chain(self, batch: ScheduleBatch) -> torch.Tensor:
        """EAGLE3's chain by its draft forward, int64 ``[rows, steps]``."""
        with ExitStack() as stack:
            stack.enter_context(draft_tp_context(self.draft_worker.parallel_layout))
            stack.enter_context(speculative_moe_backend_context())
            stack.enter_context(speculative_moe_a2a_backend_context())
            stack.enter_context(spec_stage_span("draft"))
            tree: EagleVerifyInput = self.draft_worker.draft(batch)
        chain: torch.Tensor = tree.draft_token.view(-1, self._steps + 1)[:, 1:]
        return chain

    @contextmanager
    def _verifying(self, width: int) -> Iterator[None]:
        """Give both workers this step's width; SGLang reads it in verify and in draft-extend."""
        workers = (self, self.draft_worker)
        for worker in workers:
            worker.speculative_num_steps = width - 1
            worker.speculative_num_draft_tokens = width
        try:
            yield
        finally:
            for worker in workers:
                worker.speculative_num_steps = self._steps
                worker.speculative_num_draft_tokens = self._steps + 1
