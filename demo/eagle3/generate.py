"""Batched answers of the target, with the hidden states that the head is trained on.

A fixed number of slots decode together; a slot that finishes is refilled from the queue, several at
a time, so that prompts are prefilled in small padded groups and the decode batch stays full.

This module does not know where prompts come from or where answers go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.demo.eagle3.kv_cache import KVCache
from hybridspec.demo.eagle3.llama import LlamaTarget

# Slots refilled at once: below, prefill runs in products too thin for a CPU; above, slots idle.
REFILL = 8


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to generate.

    Attributes:
        index: the caller's own number, returned with the answer.
        prompt: token ids, chat template applied.
        max_new: answer length limit in tokens.
        temperature: 0 for greedy.
    """

    index: int
    prompt: list[int]
    max_new: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished sequence.

    Attributes:
        job: what was asked.
        tokens: int64 ``[n]``, prompt and answer (with the end token when the answer ended).
        states: ``[m, (taps + 1) * hidden]`` in the target's dtype: the tapped states, then the
            final normed hidden state, of the first ``m = n - 1`` tokens (the last one was never
            run).
    """

    job: Job
    tokens: Tensor
    states: Tensor


class Generator:
    """Runs jobs through slots. Buffers are allocated once; ``run`` may be called repeatedly."""

    def __init__(self, target: LlamaTarget, slots: int, length: int, seed: int) -> None:
        """Allocate for ``slots`` sequences of at most ``length`` tokens, prompt included."""
        self.target, self.slots, self.length = target, slots, length
        dtype, shape = target.embed.dtype, target.shape
        self.cache = KVCache(shape.layers, slots, shape.kv_heads, shape.head_dim, dtype)
        width = (len(target.taps) + 1) * shape.hidden
        self.states = torch.zeros(slots, length, width, dtype=dtype)
        self.tokens = torch.zeros(slots, length + 1, dtype=torch.int64)
        self.filled = torch.zeros(slots, dtype=torch.int64)
        self.temperature = torch.zeros(slots, 1)
        self.jobs: list[Job | None] = [None] * slots
        self.random = torch.Generator().manual_seed(seed)

    def run(self, jobs: Iterable[Job], done: Callable[[Answer], None]) -> None:
        """Answer all jobs; ``done`` is called once for each, in order of finishing.

        Raises:
            ValueError: a prompt leaves no room for an answer.
        """
        queue = iter(jobs)
        exhausted = False
        while True:
            free = [i for i, job in enumerate(self.jobs) if job is None]
            if not exhausted and len(free) >= min(REFILL, self.slots):
                exhausted = not self._fill(free[:REFILL], queue, done)
                if len(free) > REFILL and not exhausted:
                    continue
            if all(job is None for job in self.jobs):
                if exhausted:
                    return
                continue
            self._step(done)

    def _fill(self, free: list[int], queue: Iterable[Job], done: Callable[[Answer], None]) -> bool:
        """Prefill the next jobs into free slots; False when the queue has run out."""
        taken = [job for _, job in zip(free, queue, strict=False)]
        if not taken:
            return False
        longest = max(len(job.prompt) for job in taken)
        if longest >= self.length:
            raise ValueError(f"a prompt has {longest} tokens; the limit is {self.length - 1}")
        slots = torch.tensor(free[: len(taken)])
        ids = torch.zeros(len(taken), longest, dtype=torch.int64)
        for row, job in enumerate(taken):
            ids[row, : len(job.prompt)] = torch.tensor(job.prompt)
            self.jobs[free[row]] = job
        lengths = torch.tensor([len(job.prompt) for job in taken])
        hidden, taps = self.target.prefill(ids, self.cache, slots)
        self.states[slots, :longest] = torch.cat([taps, hidden], -1)
        self.tokens[slots, :longest] = ids
        self.filled[slots] = lengths
        self.temperature[slots, 0] = torch.tensor([job.temperature for job in taken])
        self._accept(slots, hidden[torch.arange(len(taken)), lengths - 1], done)
        return len(taken) == len(free)

    def _step(self, done: Callable[[Answer], None]) -> None:
        active = torch.tensor([i for i, job in enumerate(self.jobs) if job is not None])
        positions = (self.filled - 1).clamp_min(0)
        ids = self.tokens[torch.arange(self.slots), positions]
        # Idle slots run too (a fixed batch), at position 0 where nothing of theirs is kept.
        idle = torch.ones(self.slots, dtype=torch.bool)
        idle[active] = False
        positions[idle] = 0
        hidden, taps = self.target.decode(ids, positions, self.cache)
        state = torch.cat([taps, hidden], -1)[:, 0]
        self.states[active, positions[active]] = state[active]
        self._accept(active, hidden[active, 0], done)

    def _accept(self, slots: Tensor, hidden: Tensor, done: Callable[[Answer], None]) -> None:
        """Choose each slot's next token, append it, and hand over the slots that are finished."""
        scores = self.target.logits(hidden)
        warm = self.temperature[slots]
        chosen = scores.argmax(-1)
        rows = (warm[:, 0] > 0).nonzero()[:, 0]
        if len(rows):
            # By the inverse of the distribution function: multinomial took a tenth of the time.
            below = torch.softmax(scores[rows].float() / warm[rows], -1).cumsum(-1)
            point = torch.rand(len(rows), 1, generator=self.random) * below[:, -1:]
            chosen[rows] = torch.searchsorted(below, point)[:, 0].clamp_max(below.shape[1] - 1)
        self.tokens[slots, self.filled[slots]] = chosen
        self.filled[slots] += 1
        for slot, token in zip(slots.tolist(), chosen.tolist(), strict=True):
            job, length = self.jobs[slot], int(self.filled[slot])
            assert job is not None
            ended = token in self.target.shape.eos
            if ended or length - len(job.prompt) >= job.max_new or length >= self.length:
                self.jobs[slot] = None
                tokens = self.tokens[slot, :length].clone()
                done(Answer(job, tokens, self.states[slot, : length - 1].clone()))
