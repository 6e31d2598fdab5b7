"""EAGLE3's accepted length at every position of traces of the embedded target, for the simulator.

One forward of the target over a whole trace gives the states that the head reads, and one unrolled
pass of the head its drafts from every position (see ``evaluate.py``). Starts no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget
from hybridspec.demo.eagle3.model import Eagle3Head, Packed, load_head
from hybridspec.gate.traces import Trace


def with_lengths(
    traces: Iterable[Trace], target_folder: Path, head_folder: Path, steps: int
) -> Iterator[Trace]:
    """The traces with ``model_accepted`` filled in.

    Args:
        traces: greedy answers of the target.
        target_folder: Hugging Face folder of a Llama model.
        head_folder: an EAGLE3 head for it, as ``write_head`` writes them.
        steps: draft tokens of a chain.
    """
    head, draft_ids = load_head(head_folder, LlamaShape.read(target_folder))
    target = LlamaTarget(target_folder, taps=head.taps)
    for trace in traces:
        yield replace(trace, model_accepted=accepted_lengths(trace, target, head, draft_ids, steps))


@torch.inference_mode()
def accepted_lengths(
    trace: Trace, target: LlamaTarget, head: Eagle3Head, draft_ids: Tensor, steps: int
) -> NDArray[np.int32]:
    """How many of ``steps`` greedy draft tokens are accepted in a step that begins at each output
    position, int32 ``[outputs]``; 0 at the first, which prefill yields."""
    tokens = torch.from_numpy(np.concatenate([trace.prompt_ids, trace.output_ids]).astype(np.int64))
    rows, first = len(tokens) - 1, len(trace.prompt_ids) - 1
    _, states = target.prefill(tokens[None, :-1], None, torch.zeros(1, dtype=torch.int64))
    packed = Packed(tokens[1:], states[0], torch.arange(rows), ((0, rows, first),))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = head.unroll(target.embed, packed, steps)
        drafts = torch.stack([draft_ids[head.lm_head(each).argmax(-1)] for each in hidden], -1)
    ahead = torch.arange(first, rows)[:, None] + torch.arange(steps) + 2
    past = ahead >= len(tokens)
    future = tokens[ahead.clamp_max(len(tokens) - 1)].masked_fill(past, -1)
    lengths = (drafts == future).long().cumprod(-1).sum(-1)
    # The query after the newest token is the one before the position where the step begins.
    result = np.zeros(len(trace.output_ids), np.int32)
    result[1:] = lengths[:-1].numpy()
    return result
