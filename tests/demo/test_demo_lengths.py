"""EAGLE3's accepted lengths along a trace, against drafting from every position alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tiny_target import TAPS, save_tiny_target
from torch import Tensor

from hybridspec.demo.eagle3.lengths import accepted_lengths
from hybridspec.demo.eagle3.llama import LlamaTarget
from hybridspec.demo.eagle3.model import Eagle3Head, Packed
from hybridspec.gate.traces import Trace

STEPS, PROMPT = 3, [5, 9, 11, 20]


def drafts_after(
    tokens: list[int], target: LlamaTarget, head: Eagle3Head, ids: Tensor
) -> list[int]:
    """The chain that a server drafts when ``tokens`` are all that there is."""
    all_ = torch.tensor(tokens)
    rows = len(tokens) - 1
    _, states = target.prefill(all_[None, :-1], None, torch.zeros(1, dtype=torch.int64))
    packed = Packed(all_[1:], states[0], torch.arange(rows), ((0, rows, rows - 1),))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = head.unroll(target.embed, packed, STEPS)
        return [int(ids[head.lm_head(each[-1]).argmax()]) for each in hidden]


def test_every_position_as_a_server_would_draft_it(tmp_path: Path) -> None:
    target = LlamaTarget(save_tiny_target(tmp_path / "target"), torch.float32, TAPS)
    torch.manual_seed(3)
    head, ids = Eagle3Head(target.shape, TAPS, 16), torch.arange(8, 40, 2)
    output = [7]
    # Some steps come true for 0 to 3 tokens, then something else is said.
    for turn in range(8):
        chain = drafts_after(PROMPT + output, target, head, ids)
        output += [*chain[: turn % 4], 3]
    trace = Trace("a", "w", "k", np.array(PROMPT, np.int32), np.array(output, np.int32))
    found = accepted_lengths(trace, target, head, ids, STEPS).tolist()
    expected = [0]
    for position in range(1, len(output)):
        chain = drafts_after(PROMPT + output[:position], target, head, ids)
        ahead = output[position : position + STEPS]
        agree = [mine == true for mine, true in zip(chain, ahead, strict=False)]
        expected.append(agree.index(False) if False in agree else len(agree))
    assert found == expected
    assert max(found) == STEPS
