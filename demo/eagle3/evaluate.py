"""How many draft tokens a head gets accepted on held-out greedy answers, step by step.

A greedy chain is accepted as far as it equals the target's own answer. While it does, the head
reads the answer's own tokens, so one unrolled pass over an answer gives the accepted length at
every position exactly; the figures then walk the answer as a server does: from each bonus token on
past what was accepted.

This module measures; it does not start servers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridspec.demo.eagle3.batches import pack
from hybridspec.demo.eagle3.model import Eagle3Head
from hybridspec.demo.eagle3.store import CorpusReader


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Figures over the decode steps that a server would make.

    Attributes:
        kind: of prompts, or ``all``.
        prompts: answers measured.
        steps: decode steps walked.
        accepted: mean accepted draft tokens per step, bonus excluded.
        reached: share of steps in which at least 1, 2, ... draft tokens were accepted.
    """

    kind: str
    prompts: int
    steps: int
    accepted: float
    reached: tuple[float, ...]

    def line(self) -> str:
        """One line for people."""
        shares = " ".join(f"{share:.3f}" for share in self.reached)
        return (
            f"{self.kind:5} {self.prompts:4} prompts {self.steps:6} steps  "
            f"accepted {self.accepted:.3f}  reached {shares}"
        )


@torch.no_grad()
def evaluate_head(
    head: Eagle3Head,
    embed: Tensor,
    draft_ids: Tensor,
    reader: CorpusReader,
    steps: int = 4,
    device: str = "cpu",
) -> dict[str, Acceptance]:
    """Accepted lengths of ``steps``-step greedy chains on the reader's sequences, by kind.

    The reader should list held-out greedy answers only.
    """
    walked: dict[str, list[list[int]]] = defaultdict(list)
    draft_ids = draft_ids.to(device)
    for sequence in reader.sequences:
        batch = pack(reader, [sequence], len(head.taps), steps, torch.device(device))
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            outputs = head.unroll(embed, batch.packed, steps)
            drafts = [draft_ids[head.lm_head(hidden).argmax(-1)] for hidden in outputs]
        hits = torch.stack(drafts, -1) == batch.future
        lengths = hits.long().cumprod(-1).sum(-1).tolist()
        walked[sequence.kind].append(_walk(lengths))
    figures = {kind: _summary(kind, found, steps) for kind, found in sorted(walked.items())}
    everything: list[Any] = [w for found in walked.values() for w in found]
    figures["all"] = _summary("all", everything, steps)
    return figures


def _walk(lengths: list[int]) -> list[int]:
    """Accepted lengths at the positions where a server stands: each one past the last accepted."""
    taken, at = [], 0
    # The last query has no token left to draft.
    while at < len(lengths) - 1:
        taken.append(lengths[at])
        at += lengths[at] + 1
    return taken


def _summary(kind: str, walks: list[list[int]], steps: int) -> Acceptance:
    flat = [length for walk in walks for length in walk]
    count = max(1, len(flat))
    reached = tuple(sum(length > k for length in flat) / count for k in range(steps))
    return Acceptance(kind, len(walks), len(flat), sum(flat) / count, reached)
