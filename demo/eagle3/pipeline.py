"""One command's worth of work: corpus, training, evaluation, head folder.

Every stage continues where a killed run stopped. This module only orders the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hybridspec.demo.eagle3.corpus import build_corpus
from hybridspec.demo.eagle3.evaluate import Acceptance, evaluate_head
from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget
from hybridspec.demo.eagle3.store import CorpusReader, read_index
from hybridspec.demo.eagle3.train import TrainConfig, Trainer
from hybridspec.demo.eagle3.write_head import write_head

Progress = Callable[[str], None]

# The training curve: how often the head is measured, and on how many held-out answers.
CURVE_POINTS = 12
CURVE_PROMPTS = 64


def default_taps(layers: int) -> tuple[int, int, int]:
    """The layers whose input SGLang captures when a head names none (``models/llama.py``)."""
    return (2, layers // 2, layers - 3)


def train_head(
    target_dir: Path,
    work: Path,
    out: Path,
    *,
    prompts: int = 4400,
    config: TrainConfig | None = None,
    corpus_s: float | None = None,
    train_s: float | None = None,
    device: str = "cpu",
    progress: Progress = print,
) -> dict[str, Acceptance]:
    """Build the corpus, train a head on it, measure it and write its folder; resumable.

    Args:
        target_dir: the target's Hugging Face folder (Llama type, one safetensors file).
        work: scratch folder for corpus and checkpoints (several GB: 4.6 kB a token).
        out: head folder to write.
        prompts: how many prompts the target answers.
        config: of the training run.
        corpus_s: time limit of the corpus stage, seconds.
        train_s: time limit of the training stage, seconds; the head is written as it then is.
        device: of the training stage.
        progress: called with one line at a time.

    Returns:
        Held-out acceptance by kind of prompt.
    """
    from transformers import AutoTokenizer

    config = config or TrainConfig()
    taps = default_taps(LlamaShape.read(target_dir).layers)
    target = LlamaTarget(target_dir, torch.bfloat16, taps)
    build_corpus(
        target,
        AutoTokenizer.from_pretrained(target_dir),
        work / "corpus",
        prompts=prompts,
        seed=config.seed,
        deadline_s=corpus_s,
        progress=progress,
    )
    trainer = Trainer(target, work / "corpus", work / "run", config, device)

    def show(record: dict[str, float]) -> None:
        progress(
            f"train: {record['tokens']:.0f} of {config.tokens} tokens, loss {record['loss']:.3f}, "
            f"first-token hits {record['first_hit']:.1%}, {record['tokens_per_s']:.0f} tokens/s"
        )

    began = time.monotonic()
    while trainer.progress["tokens"] < config.tokens:
        left = None if train_s is None else train_s - (time.monotonic() - began)
        if left is not None and left <= 0:
            break
        every = max(1, config.tokens // CURVE_POINTS)
        trainer.run(left, show, until=(trainer.progress["tokens"] // every + 1) * every)
        _measure(trainer, progress, limit=CURVE_PROMPTS)
    return publish(trainer, out, target_name=target_dir.name, progress=progress)


def publish(
    trainer: Trainer, out: Path, *, target_name: str, progress: Progress = print
) -> dict[str, Acceptance]:
    """Measure a trainer's head on the held-out greedy answers and write its folder."""
    figures = _measure(trainer, progress)
    write_head(
        out,
        trainer.head,
        trainer.draft_ids,
        target_name=target_name,
        coverage=trainer.coverage,
        data=_data_paragraph(trainer.corpus_folder),
        training=_training_paragraph(trainer),
        figures=[figure.line() for figure in figures.values()],
        curve=_curve(trainer.run_folder / "heldout.jsonl"),
    )
    progress(f"head written to {out}")
    return figures


def _measure(
    trainer: Trainer, progress: Progress, limit: int | None = None
) -> dict[str, Acceptance]:
    """Held-out acceptance now, kept in the run's ``heldout.jsonl``; of the first answers only if
    there is a ``limit``."""
    held = CorpusReader(trainer.corpus_folder, lambda s: s.held_out and s.temperature == 0)
    held.sequences = held.sequences[:limit]
    figures = evaluate_head(
        trainer.head, trainer.embed, trainer.draft_ids, held, device=str(trainer.device)
    )
    for figure in figures.values():
        progress(figure.line())
    record = {
        "tokens": trainer.progress["tokens"],
        "prompts": len(held.sequences),
        "accepted": {kind: figure.accepted for kind, figure in figures.items()},
        "first_hit": {kind: figure.reached[0] for kind, figure in figures.items()},
    }
    with (trainer.run_folder / "heldout.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    return figures


def _curve(path: Path) -> list[str]:
    """The training curve for the card: one line for each time the head was measured."""
    lines = ["positions   edit: first hit, accepted   chat: first hit, accepted"]
    for text in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(text)
        if "first_hit" not in record:
            continue
        cells = [
            f"{record['first_hit'].get(kind, 0.0):9.3f} {record['accepted'].get(kind, 0.0):6.3f}"
            for kind in ("edit", "chat")
        ]
        lines.append(f"{record['tokens']:9d}   {cells[0]:24}    {cells[1]}")
    return lines


def _data_paragraph(corpus: Path) -> str:
    sequences = [s for s in read_index(corpus) if not s.held_out]
    answers = sum(s.length - s.prompt for s in sequences)
    kinds = _counts([s.kind for s in sequences])
    return (
        f"{len(sequences)} prompts ({kinds}) in the target's chat template, {answers} tokens of "
        "the target's own answers, about a quarter of them sampled at temperature 0.7, the rest "
        "greedy."
    )


def _training_paragraph(trainer: Trainer) -> str:
    config, progress = trainer.config, trainer.progress
    return (
        f"{progress['tokens']} positions (repeats counted) in {progress['updates']} updates; "
        f"training-time test over {config.phases[-1][1]} draft steps, soft targets, step weights "
        f"{config.step_decay}^j, Muon and AdamW at {config.lr:g}, seed {config.seed}."
    )


def _counts(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
