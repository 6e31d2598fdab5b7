"""The corpus: a fixed plan of prompts, answered by the target and stored with its hidden states.

The plan depends on the seed and on the machine's own material (standard library, Debian documents);
building it again continues where a killed build stopped.

This module does not train anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from hybridspec.demo.eagle3.generate import Answer, Generator, Job
from hybridspec.demo.eagle3.llama import LlamaTarget
from hybridspec.demo.eagle3.material import debian_passages, stdlib_functions, stdlib_passages
from hybridspec.demo.eagle3.prompts.chat import chat_prompt
from hybridspec.demo.eagle3.prompts.code import code_prompt, edit_prompt
from hybridspec.demo.eagle3.prompts.documents import document_prompt
from hybridspec.demo.eagle3.prompts.structured import structured_prompt
from hybridspec.demo.eagle3.store import CorpusWriter

# Share of prompts and answer limit in tokens, by kind. Edits and chat are what the demo measures.
KINDS: dict[str, tuple[float, int]] = {
    "edit": (0.34, 280),
    "chat": (0.38, 220),
    "tool": (0.12, 160),
    "doc": (0.09, 150),
    "code": (0.07, 200),
}
SAMPLED_SHARE = 0.25
SAMPLED_TEMPERATURE = 0.7
HELD_OUT_SHARE = 0.05
MAX_PROMPT = 420
# Prompts are sorted by length inside groups of this size: little padding, all kinds soon.
GROUP = 192


@dataclass(frozen=True, slots=True)
class Planned:
    """One prompt of the plan, as a user message."""

    index: int
    kind: str
    text: str
    held_out: bool
    temperature: float


def plan_prompts(count: int, seed: int) -> list[Planned]:
    """A fixed list of ``count`` distinct prompts of all kinds, 5% of them held out.

    Functions and passages are split before prompts are made of them, so that a held-out prompt is
    never about code or text that was trained on.
    """
    random = Random(seed)
    functions, passages = list(stdlib_functions()), [*stdlib_passages(), *debian_passages()]
    pools = []
    for items in (functions, passages):
        random.shuffle(items)
        cut = int(len(items) * HELD_OUT_SHARE) + 1
        pools.append((items[cut:], items[:cut]))
    makers: dict[str, Callable[[bool], str]] = {
        "edit": lambda held: edit_prompt(random.choice(pools[0][held]), random),  # type: ignore[arg-type]
        "code": lambda held: code_prompt(random.choice(pools[0][held]), random),  # type: ignore[arg-type]
        "doc": lambda held: document_prompt(random.choice(pools[1][held]), random),  # type: ignore[arg-type]
        "tool": lambda held: structured_prompt(random),
        "chat": lambda held: chat_prompt(random),
    }
    kinds = list(KINDS)
    weights = [KINDS[kind][0] for kind in kinds]
    seen: set[str] = set()
    plan: list[Planned] = []
    for _ in range(count * 4):
        if len(plan) == count:
            break
        kind = random.choices(kinds, weights)[0]
        held = random.random() < HELD_OUT_SHARE
        text = makers[kind](held)
        warm = not held and random.random() < SAMPLED_SHARE
        if text in seen:
            continue
        seen.add(text)
        plan.append(Planned(len(plan), kind, text, held, SAMPLED_TEMPERATURE if warm else 0.0))
    return plan


def encode_chat(tokenizer: Any, text: str) -> list[int]:
    """Token ids of one user message in the target's chat template, as a server builds them."""
    message = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def write_prior(tokenizer: Any, folder: Path, vocab: int) -> None:
    """Count the tokens of a sample of this machine's own text into ``folder/prior.npy``."""
    folder.mkdir(parents=True, exist_ok=True)
    code = [function.source for function in stdlib_functions()[::8]]
    prose = [*stdlib_passages(), *debian_passages()][::4]
    total = np.zeros(vocab)
    for texts in (code, prose):
        counts = np.zeros(vocab)
        for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            counts += np.bincount(ids, minlength=vocab)
        total += counts / counts.sum()
    np.save(folder / "prior.npy", total)


def build_corpus(
    target: LlamaTarget,
    tokenizer: Any,
    folder: Path,
    *,
    prompts: int,
    seed: int = 0,
    slots: int = 64,
    deadline_s: float | None = None,
    progress: Callable[[str], None] = print,
) -> None:
    """Generate the answers of the plan that ``folder`` does not hold yet.

    Args:
        target: with the taps that the head will be fed.
        tokenizer: the target's, with its chat template.
        folder: written to; see :mod:`hybridspec.demo.eagle3.store`.
        prompts: length of the plan.
        seed: of the plan and of sampled answers.
        slots: sequences decoded together.
        deadline_s: stop taking new prompts after this many seconds.
        progress: called with one line per group.
    """
    started, made = time.monotonic(), 0
    plan = {p.index: p for p in plan_prompts(prompts, seed)}
    length = MAX_PROMPT + max(limit for _, limit in KINDS.values())
    writer = CorpusWriter(folder, (len(target.taps) + 1) * target.shape.hidden)
    if not (folder / "prior.npy").exists():
        write_prior(tokenizer, folder, target.shape.vocab)
    generator = Generator(target, slots, length, seed)

    def done(answer: Answer) -> None:
        nonlocal made
        made += len(answer.tokens) - len(answer.job.prompt)
        _store(writer, answer, plan[answer.job.index])

    def jobs() -> Iterator[Job]:
        waiting = [p for p in plan.values() if p.index not in writer.known]
        for first in range(0, len(waiting), GROUP):
            group = [
                Job(p.index, encode_chat(tokenizer, p.text), KINDS[p.kind][1], p.temperature)
                for p in waiting[first : first + GROUP]
            ]
            seconds = time.monotonic() - started
            if deadline_s is not None and seconds > deadline_s:
                return
            left = len(waiting) - first
            progress(f"corpus: {left} prompts left, {made} tokens, {made / seconds:.0f} tokens/s")
            fitting = [job for job in group if len(job.prompt) <= MAX_PROMPT]
            # Up in one group and down in the next, so that neighbours in time are of like length.
            descending = first // GROUP % 2 == 1
            yield from sorted(fitting, key=lambda job: len(job.prompt), reverse=descending)

    generator.run(jobs(), done)
    writer.close()
    progress(f"corpus: done, {made} new answer tokens in {time.monotonic() - started:.0f} s")


def _store(writer: CorpusWriter, answer: Answer, entry: Planned) -> None:
    writer.add(
        answer.tokens,
        answer.states,
        index=entry.index,
        kind=entry.kind,
        held_out=entry.held_out,
        prompt=len(answer.job.prompt),
        temperature=entry.temperature,
    )
