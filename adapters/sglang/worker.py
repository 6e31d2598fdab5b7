"""The HYBRID speculative worker: SGLang's EAGLE3 worker with the draft of each step chosen by us.

Only the drafting half of a decode step is ours, and when EAGLE3's draft-extend runs. Prefill,
target verify, sampling and every scheduler contract stay SGLang's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.runtime_context import attention_backends, get_parallel, get_schedule
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.spec_utils import spec_stage_span

from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang import branches, config, min_p, validate
from hybridspec.adapters.sglang.branches import Branches
from hybridspec.adapters.sglang.chain import ChainBuilder
from hybridspec.adapters.sglang.draft_context import drafting
from hybridspec.adapters.sglang.draft_extend import DraftExtend
from hybridspec.adapters.sglang.plan_channel import PlanChannel
from hybridspec.adapters.sglang.planner import StepPlanner
from hybridspec.adapters.sglang.step_plan import StepPlan
from hybridspec.adapters.sglang.token_relay import TokenRelay
from hybridspec.adapters.sglang.width_states import WidthStates

logger = logging.getLogger(__name__)


class HybridWorker(EAGLEWorkerV2):  # type: ignore[misc]
    """Drafts from the suffix cache, EAGLE3 or nothing, row by row, and verifies one chain width."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        backends = attention_backends()
        for chosen in backends:
            if problem := validate.backend_problem(config.current(), chosen):
                raise ValueError(f"hybridspec: attention backend {problem}")
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self._steps = self.speculative_num_steps
        self._chains = ChainBuilder(self.device)
        self._states: WidthStates | None = None
        self._branches = Branches(self)
        self._branched: torch.Tensor | None = None
        self._draft_extend = DraftExtend(
            self.draft_worker, self._stub_skipped_draft_extend, self._verified
        )
        tp = get_tp_group() if get_parallel().tp_size > 1 else None
        widest = config.current().widths[-1]
        self._channel = PlanChannel(tp.cpu_group, tp.ranks[0], widest) if tp else None
        self._planner: StepPlanner | None = None  # another rank decides
        self._relay: TokenRelay | None = None  # results are taken in before the next step
        self._relayed = 0  # settled steps whose results the scheduler has not taken in yet
        if self._channel is None or self._channel.leads:
            overlaps = not get_schedule().disable_overlap_schedule
            self._relay = TokenRelay(str(self.device)) if overlaps else None
            self._planner = StepPlanner(
                config.current(),
                model_steps=self._steps,
                device=str(self.device),
                # A step's wall time is its true time only where it runs synchronously.
                times_steps=str(self.device) == "cpu" and not overlaps,
                model=Path(server_args.model_path).name,
                most_rows=server_args.max_running_requests,
            )
            self._let_merge(backends, get_schedule().page_size or 1)

    def _let_merge(self, backends: Sequence[str], page_size: int) -> None:
        """Let the planner give rows two branches, where these can be verified."""
        assert self._planner is not None
        if config.current().branches == "never":
            return
        if problem := branches.problem(backends, page_size):
            logger.warning("hybridspec: no rows with two branches: %s", problem)
        else:
            self._planner.merge()

    def init_cuda_graphs(self) -> None:
        """Called when all of SGLang's backends are built: build those of the other widths."""
        super().init_cuda_graphs()
        self._states = WidthStates(self)
        self._states.build(config.current().widths)

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
            return self._pass_on(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        started = time.perf_counter()
        first = self._free_model_token(batch)
        plan = self._plan(batch, first)
        self._draft_extend.due = plan.extend
        bonus = batch.spec_info.bonus_tokens
        chain = self._model_chain(batch, plan, first)
        draft = self._draft_tokens(plan, chain)
        assert self._states is not None
        with (
            self._states.using(plan.width),
            min_p.during(batch.sampling_info),
            self._branches.step(),
        ):
            batch.spec_info = self._verify_input(batch, plan, bonus, draft, chain)
            result = super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
        if self._planner is not None:
            self._planner.ran(started, time.perf_counter(), self._draft_extend.seconds)
            if self._states.captures and not result.can_run_cuda_graph:
                self._planner.metrics.eager_step(plan.width)
        return result

    def _pass_on(self, batch: ScheduleBatch, *args: Any) -> Any:
        """A prefill, or nothing to run."""
        if self._planner is not None:
            self._planner.interrupted()
        result = super().forward_batch_generation(batch, *args)
        if self._relay is None:
            return result
        if result.next_token_ids is None:
            self._relay.forget()
        else:
            self._relay.launched(batch.reqs, result.next_token_ids)
        return result

    def _verified(self, batch: ScheduleBatch, result: Any) -> None:
        """Called once a decode step's tokens are decided, before its draft-extend."""
        branched = self._branches.verified(batch, result)
        if self._relay is not None:
            self._relay.launched(batch.reqs, result.next_token_ids, result.accept_lens, branched)
        elif branched is not None:
            # Whole on the host once the scheduler has waited for what it copies itself.
            branched = branched.to("cpu", non_blocking=True)
        self._branched = branched

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], batch_size: int = 0
    ) -> None:
        """Called with each row's accepted length (bonus excluded) once it is on the host."""
        if self._relayed:
            self._relayed -= 1
        elif self._planner is not None:
            branched = None if self._branched is None else self._branched.numpy()
            self._planner.settle(num_correct_drafts_per_req, branched)

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
        newest = self._relay.take() if self._relay is not None else None
        if newest is not None and newest.accepted is not None:
            # The scheduler will tell the same later.
            self._relayed += self._planner.settle(newest.accepted, newest.branches)
        plan = self._planner.plan(
            batch.reqs,
            first.numpy() if on_host else None,
            newest.tokens if newest is not None else {},
        )
        if self._channel is not None:
            self._channel.send(plan)
        return plan

    def _draft_tokens(self, plan: StepPlan, chain: torch.Tensor | None) -> torch.Tensor:
        """What the rows propose in their first branch, int64 ``[rows, width - 1]``."""
        draft = torch.from_numpy(plan.tokens).to(self.device, torch.int64, non_blocking=True)
        if chain is not None:
            of_model = torch.from_numpy(plan.source == Source.MODEL).to(self.device)[:, None]
            columns = draft[:, : chain.shape[1]]
            columns.copy_(torch.where(of_model, chain, columns))
        return draft

    def _verify_input(
        self,
        batch: ScheduleBatch,
        plan: StepPlan,
        bonus: torch.Tensor,
        draft: torch.Tensor,
        chain: torch.Tensor | None,
    ) -> EagleVerifyInput:
        if plan.branch is not None and chain is not None:
            return self._branches.build(plan, batch, bonus, draft, chain)
        return self._chains.build(
            bonus,
            draft,
            plan.length,
            batch.seq_lens,
            batch.seq_lens_sum,
            self.target_worker.model_runner.attn_backend,
        )

    def _free_model_token(self, batch: ScheduleBatch) -> torch.Tensor:
        """The first token of EAGLE3's chain, int64 ``[rows]``: draft-extend has predicted it."""
        first: torch.Tensor = batch.spec_info.topk_index[:, 0]
        hot = self.draft_worker.hot_token_id
        return first if hot is None else hot[first]

    def _model_chain(
        self, batch: ScheduleBatch, plan: StepPlan, first: torch.Tensor
    ) -> torch.Tensor | None:
        """EAGLE3's chain, int64 ``[rows, model_length]``; None if no row takes any of it."""
        if not plan.model_length:
            return None
        if not plan.model_forward:
            return first[:, None]
        with drafting(self.draft_worker), spec_stage_span("draft"):
            tree: EagleVerifyInput = self.draft_worker.draft(batch)
        chain: torch.Tensor = tree.draft_token.view(-1, self._steps + 1)[:, 1:]
        return chain[:, : plan.model_length]
