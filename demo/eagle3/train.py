"""Training of an EAGLE-3 head on a stored corpus: checkpoints, resume, fixed seeds.

Soft targets: the target's own distribution over the draft vocabulary, recomputed from its stored
final states. A killed run continues at the batch after its last checkpoint and gives the same
weights as an uninterrupted one.

This module does not generate text and does not know SGLang.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridspec.demo.eagle3.batches import Batch, choose_draft_vocab, pack, shuffled_groups
from hybridspec.demo.eagle3.llama import LlamaTarget
from hybridspec.demo.eagle3.model import Eagle3Head, start_from_target
from hybridspec.demo.eagle3.optimiser import MuonAdamW
from hybridspec.demo.eagle3.store import CorpusReader


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """What one run does.

    Attributes:
        draft_vocab: tokens that the head may draft.
        phases: pairs (share of the run at which the phase ends, draft steps unrolled). The later
            steps learn little before the first one works, and cost as much. One-step phases
            train on the prompt's positions too: more text for the same forward pass.
        tokens: answer positions to train on in all, repeats counted.
        queries: answer positions per update.
        lr: peak learning rate, after ``warmup`` updates; falls linearly to a tenth over the last
            ``cooldown`` share of the run.
        step_decay: weight of step j's loss is ``step_decay ** j`` (0.8 as in the EAGLE code base).
        seed: of the start and the batch order.
        checkpoint_s: seconds between checkpoints.
    """

    draft_vocab: int = 8192
    phases: tuple[tuple[float, int], ...] = ((0.2, 1), (0.35, 2), (1.0, 4))
    tokens: int = 2_200_000
    queries: int = 1024
    lr: float = 2e-3
    warmup: int = 20
    cooldown: float = 0.5
    step_decay: float = 0.8
    seed: int = 0
    checkpoint_s: float = 120.0


class Trainer:
    """One run in one folder: ``checkpoint.pt`` and ``log.jsonl``."""

    def __init__(
        self,
        target: LlamaTarget,
        corpus: Path,
        run: Path,
        config: TrainConfig,
        device: str = "cpu",
    ) -> None:
        """Start, or continue from ``run/checkpoint.pt``.

        Raises:
            ValueError: the corpus holds no training sequence.
        """
        self.config, self.run_folder, self.device = config, run, torch.device(device)
        self.corpus_folder = corpus
        self.embed = target.embed.to(self.device)
        run.mkdir(parents=True, exist_ok=True)
        path = run / "checkpoint.pt"
        saved = torch.load(path, weights_only=True) if path.exists() else None
        self.reader = CorpusReader(corpus, lambda s: not s.held_out)
        if not self.reader.sequences:
            raise ValueError(f"{corpus} holds no training sequence yet")
        vocab = target.shape.vocab
        if saved is None:
            chosen = choose_draft_vocab(self.reader, vocab, config.draft_vocab)
        else:
            chosen = saved["draft_ids"], saved["coverage"]
        self.draft_ids, self.coverage = chosen
        self.to_draft = torch.full((vocab,), -1, dtype=torch.int64)
        self.to_draft[self.draft_ids] = torch.arange(len(self.draft_ids))
        self.to_draft = self.to_draft.to(self.device)
        self.output_rows = target.head[self.draft_ids].bfloat16().to(self.device)
        torch.manual_seed(config.seed)
        self.head = Eagle3Head(target.shape, target.taps, len(self.draft_ids))
        start_from_target(self.head, target, self.draft_ids, config.seed)
        self.head.to(self.device)
        self.optimiser = _optimiser(self.head, config)
        self.progress: dict[str, int] = {"updates": 0, "tokens": 0, "epoch": 0, "batch": 0}
        self.progress["sequences"] = len(self.reader.sequences)
        if saved is not None:
            self.head.load_state_dict(saved["head"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.progress = saved["progress"]

    def run(
        self,
        stop_after_s: float | None = None,
        on_log: Callable[[dict[str, float]], None] = lambda record: None,
        *,
        until: int | None = None,
    ) -> bool:
        """Train until the token budget or the time limit; True when the budget is used up.

        ``until`` ends this call earlier, once so many positions are trained in all; the learning
        rate follows the budget all the same.
        ``on_log`` gets a record about every twenty updates: updates, tokens, loss, first-step hit
        rate, tokens per second.
        """
        began = saved_at = time.monotonic()
        sums = {"loss": 0.0, "hits": 0.0, "rows": 0.0}
        since, first_tokens = began, self.progress["tokens"]
        end = self.config.tokens if until is None else min(until, self.config.tokens)
        while self.progress["tokens"] < end:
            for group in self._rest_of_epoch():
                result = self._update(group)
                for key, value in result.items():
                    sums[key] += value
                now = time.monotonic()
                if self.progress["updates"] % 20 == 0:
                    rate = (self.progress["tokens"] - first_tokens) / (now - since)
                    self._log(sums, rate, on_log)
                    sums = dict.fromkeys(sums, 0.0)
                    since, first_tokens = now, self.progress["tokens"]
                if now - saved_at > self.config.checkpoint_s:
                    self.save()
                    saved_at = now
                if self.progress["tokens"] >= end:
                    break
                if stop_after_s is not None and now - began > stop_after_s:
                    self.save()
                    return False
            else:
                self._next_epoch()
        self.save()
        return self.progress["tokens"] >= self.config.tokens

    def save(self) -> None:
        """Write the checkpoint; a kill during it leaves the former one."""
        path = self.run_folder / "checkpoint.pt"
        part = path.with_suffix(".part")
        state = {
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "progress": self.progress,
            "draft_ids": self.draft_ids,
            "coverage": self.coverage,
        }
        torch.save(state, part)
        os.replace(part, path)

    def _rest_of_epoch(self) -> list[list[Any]]:
        sequences = self.reader.sequences[: self.progress["sequences"]]
        config = self.config
        groups = shuffled_groups(sequences, config.queries, config.seed, self.progress["epoch"])
        return groups[self.progress["batch"] :]

    def _next_epoch(self) -> None:
        """Go on with whatever the corpus holds by now."""
        self.reader = CorpusReader(self.corpus_folder, lambda s: not s.held_out)
        self.progress["epoch"] += 1
        self.progress["batch"] = 0
        self.progress["sequences"] = len(self.reader.sequences)

    def _update(self, group: list[Any]) -> dict[str, float]:
        config, done = self.config, self.progress["tokens"] / self.config.tokens
        steps = next(steps for end, steps in config.phases if done < end)
        rate = min(1.0, (self.progress["updates"] + 1) / config.warmup)
        rate *= max(0.1, min(1.0, (1 - done) / config.cooldown))
        for part in self.optimiser.param_groups:
            part["lr"] = config.lr * rate
        if steps == 1:
            group = [replace(sequence, prompt=1) for sequence in group]
        batch = pack(self.reader, group, len(self.head.taps), steps, self.device)
        loss, hits, rows = self._loss(batch, steps)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimiser.step()
        self.progress["updates"] += 1
        self.progress["batch"] += 1
        self.progress["tokens"] += sum(batch.counts)
        return {"loss": float(loss.detach()) * rows, "hits": hits, "rows": rows}

    def _loss(self, batch: Batch, steps: int) -> tuple[Tensor, float, float]:
        """Weighted cross entropy over the steps; hits and rows are the first step's."""
        first_row = batch.source.clamp_min(0)
        with torch.no_grad():
            judged, where = torch.unique(first_row, return_inverse=True)
            scores = F.linear(batch.final[judged], self.output_rows).float()
            wanted = torch.softmax(scores, -1)
        draft = self.to_draft[batch.future.clamp_min(0)]
        draft = draft.masked_fill(batch.future < 0, -1)
        total, weight, hits, rows = torch.zeros(()), 0.0, 0.0, 1.0
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs = self.head.unroll(self.embed, batch.packed, steps)
        for step, hidden in enumerate(outputs):
            # Where the target's own next token cannot be drafted there is nothing to learn.
            good = (draft[:, step] >= 0).nonzero()[:, 0]
            with torch.autocast(self.device.type, torch.bfloat16):
                logits = self.head.lm_head(hidden[good])
            loss = F.cross_entropy(logits.float(), wanted[where[good, step]])
            share = self.config.step_decay**step
            total, weight = total + share * loss, weight + share
            if step == 0:
                rows = float(max(1, len(good)))
                hits = float((logits.argmax(-1) == draft[good, 0]).sum())
        return total / weight, hits, rows

    def _log(
        self, sums: dict[str, float], rate: float, on_log: Callable[[dict[str, float]], None]
    ) -> None:
        record = {
            "updates": self.progress["updates"],
            "epoch": self.progress["epoch"],
            "tokens": self.progress["tokens"],
            "loss": round(sums["loss"] / max(1.0, sums["rows"]), 4),
            "first_hit": round(sums["hits"] / max(1.0, sums["rows"]), 4),
            "tokens_per_s": round(rate, 1),
        }
        with (self.run_folder / "log.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        on_log(record)


def _optimiser(head: Eagle3Head, config: TrainConfig) -> MuonAdamW:
    named = dict(head.named_parameters())
    matrices = [p for name, p in named.items() if p.ndim == 2 and not name.startswith("lm_head")]
    others = [p for name, p in named.items() if p.ndim != 2 or name.startswith("lm_head")]
    return MuonAdamW(matrices, others, config.lr)
