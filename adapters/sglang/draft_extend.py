"""EAGLE3's draft-extend, now or later: several steps' tokens in one forward of the draft head.

Stands in for the draft worker's own ``_draft_extend_for_decode``. Steps that are put off leave
references to what that function would have read. Catching up is what SGLang does after a prefill
(its ``_draft_extend_for_prefill``): tokens and target hidden states of each row from the first one
that the head lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from hybridspec.adapters.sglang.deferral import Extend


@dataclass(frozen=True, slots=True)
class _Step:
    """One verified step: row ``i`` has ``accepted[i]`` tokens at ``i * width`` and after."""

    rids: tuple[str, ...]
    width: int
    starts: torch.Tensor
    accepted: torch.Tensor
    tokens: torch.Tensor
    hidden: torch.Tensor


class DraftExtend:
    """Called once per verified step by SGLang; ``due`` says what is to be done about it, and
    ``seconds`` how long that took on the host."""

    def __init__(
        self, draft_worker: Any, stub: Callable[..., None], verified: Callable[..., None]
    ) -> None:
        """Take the place of ``draft_worker``'s draft-extend.

        Args:
            draft_worker: SGLang's EAGLE3 draft worker.
            stub: fills the shape of a skipped draft-extend in, given a batch and its result.
            verified: told of every batch and its result before anything else is done.
        """
        self.due = Extend.NOW
        self.seconds = 0.0
        self._worker, self._stub, self._verified = draft_worker, stub, verified
        self._now = draft_worker._draft_extend_for_decode
        self._waiting: list[_Step] = []
        draft_worker._draft_extend_for_decode = self

    def __call__(self, batch: ScheduleBatch, result: Any, *, kv_loc_plan: Any = None) -> None:
        """Run, put off or skip the draft-extend of a step."""
        self._verified(batch, result)
        began = time.perf_counter()
        self._carry_out(batch, result, kv_loc_plan)
        self.seconds = time.perf_counter() - began

    def _carry_out(self, batch: ScheduleBatch, result: Any, kv_loc_plan: Any) -> None:
        if self.due is Extend.NOW and not self._waiting:
            self._now(batch, result, kv_loc_plan=kv_loc_plan)
            return
        if self.due is not Extend.NEVER:
            self._waiting.append(_step(batch, result))
        if self.due is not Extend.NOW:
            self._stub(batch, result)
            return
        waiting, self._waiting = self._waiting, []
        self._catch_up(batch, result, waiting)

    def _catch_up(self, batch: ScheduleBatch, result: Any, waiting: list[_Step]) -> None:
        starts, lengths, picks = _lacking(waiting)
        index = torch.tensor([at for row in picks for at in row], device=batch.seq_lens.device)
        tokens = torch.cat([step.tokens for step in waiting])[index].to(torch.int64)
        hidden = torch.cat([step.hidden for step in waiting])[index]
        rows = batch.req_pool_indices.tolist()
        table = batch.req_to_token_pool.req_to_token
        slots = [
            table[row, start : start + length]
            for row, start, length in zip(rows, starts, lengths, strict=True)
        ]
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        # The scheduler restores the batch after the step.
        batch.forward_mode = ForwardMode.EXTEND
        # SGLang moves the tokens of each row left by one, as the head reads the next token.
        batch.input_ids = tokens.roll(1)
        batch.out_cache_loc = torch.cat(slots).to(torch.int64)
        batch.prefix_lens, batch.extend_lens = starts, lengths
        batch.extend_num_tokens = len(index)
        batch.seq_lens_cpu = torch.tensor(ends, dtype=torch.int64)
        batch.seq_lens = batch.seq_lens_cpu.to(batch.seq_lens)
        batch.seq_lens_sum = sum(ends)
        batch.extend_logprob_start_lens = batch.extend_input_logprob_token_ids = None
        batch.chunked_req_next_prompt_token = None
        bonus = result.next_draft_input.bonus_tokens
        found = self._worker._draft_extend_for_prefill(batch, hidden, bonus)
        for name in ("topk_p", "topk_index", "hidden_states"):
            setattr(result.next_draft_input, name, getattr(found, name))


def _step(batch: ScheduleBatch, result: Any) -> _Step:
    hidden = result.logits_output.hidden_states
    return _Step(
        rids=tuple(request.rid for request in batch.reqs),
        width=result.speculative_num_draft_tokens,
        starts=batch.seq_lens,
        accepted=result.accept_lens,
        tokens=result.next_token_ids,
        # A replayed CUDA graph writes its outputs to the same place every time.
        hidden=hidden.clone() if result.can_run_cuda_graph else hidden,
    )


def _lacking(waiting: list[_Step]) -> tuple[list[int], list[int], list[list[int]]]:
    """What the rows of the newest step lack: first position, tokens, and each token's place.

    A row that was prefilled meanwhile lacks only what came after that: its steps before do not
    reach up to those after.
    """
    rids = waiting[-1].rids
    first: dict[str, int] = {}
    places: dict[str, list[int]] = {rid: [] for rid in rids}
    offset = 0
    for step in waiting:
        starts, accepted = step.starts.tolist(), step.accepted.tolist()
        for row, rid in enumerate(step.rids):
            if rid not in places:
                continue
            known = places[rid]
            if not known or first[rid] + len(known) != starts[row]:
                first[rid] = starts[row]
                known.clear()
            at = offset + row * step.width
            known.extend(range(at, at + accepted[row]))
        offset += len(step.tokens)
    picks = [places[rid] for rid in rids]
    return [first[rid] for rid in rids], [len(pick) for pick in picks], picks
