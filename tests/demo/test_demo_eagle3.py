"""The EAGLE3 trainer: its forward passes against references, its files, and learning to copy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_target import TAPS, save_tiny_target
from torch import Tensor

from hybridspec.adapters.eagle3_head import check_head
from hybridspec.demo.eagle3.batches import choose_draft_vocab, pack, shuffled_groups
from hybridspec.demo.eagle3.corpus import KINDS, plan_prompts
from hybridspec.demo.eagle3.evaluate import _walk, evaluate_head
from hybridspec.demo.eagle3.generate import Answer, Generator, Job
from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget
from hybridspec.demo.eagle3.model import Eagle3Head, Packed, load_head
from hybridspec.demo.eagle3.optimiser import orthogonalised
from hybridspec.demo.eagle3.pipeline import publish
from hybridspec.demo.eagle3.store import CorpusReader, CorpusWriter
from hybridspec.demo.eagle3.train import TrainConfig, Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def target(folder: Path) -> LlamaTarget:
    return LlamaTarget(folder, torch.float32, TAPS)


def test_prefill_equals_transformers(folder: Path, target: LlamaTarget) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(3, 64, (2, 17), generator=torch.Generator().manual_seed(1))
    hidden, taps = target.prefill(ids, None, torch.arange(2))
    with torch.no_grad():
        want = model(ids, output_hidden_states=True)
    assert torch.allclose(target.logits(hidden), want.logits, atol=1e-4)
    assert torch.allclose(taps, torch.cat([want.hidden_states[i] for i in TAPS], -1), atol=1e-4)


def _jobs(count: int) -> list[Job]:
    random = torch.Generator().manual_seed(2)
    return [
        Job(i, torch.randint(3, 64, (3 + i % 5,), generator=random).tolist(), 9 + i % 4, 0.0)
        for i in range(count)
    ]


def test_slots_give_what_one_sequence_alone_gives(target: LlamaTarget) -> None:
    answers: dict[int, Answer] = {}
    jobs = _jobs(21)
    generator = Generator(target, slots=5, length=40, seed=0)
    generator.run(jobs, lambda answer: answers.update({answer.job.index: answer}))
    assert sorted(answers) == list(range(21))
    for job in jobs:
        answer, ids = answers[job.index], list(job.prompt)
        while len(ids) - len(job.prompt) < job.max_new and ids[-1] != 2:
            hidden, _ = target.prefill(torch.tensor([ids]), None, torch.zeros(1).long())
            ids.append(int(target.logits(hidden[0, -1]).argmax()))
        assert answer.tokens.tolist() == ids
        hidden, taps = target.prefill(torch.tensor([ids[:-1]]), None, torch.zeros(1).long())
        assert torch.allclose(answer.states, torch.cat([taps, hidden], -1)[0], atol=1e-4)


def test_a_prompt_without_room_is_refused(target: LlamaTarget) -> None:
    with pytest.raises(ValueError, match="the limit is 7"):
        Generator(target, 2, 8, 0).run([Job(0, [5] * 8, 4, 0.0)], lambda answer: None)


def _write(folder: Path, width: int, count: int) -> list[tuple[Tensor, Tensor]]:
    writer, made = CorpusWriter(folder, width), []
    for index in range(count):
        n = 6 + index
        tokens = torch.arange(n) + index
        states = torch.randn(n - 1, width).bfloat16()
        writer.add(
            tokens,
            states,
            index=index,
            kind="chat",
            held_out=index % 2 == 1,
            prompt=3,
            temperature=0.0,
        )
        made.append((tokens, states))
    writer.close()
    return made


def test_store_returns_what_was_written(tmp_path: Path) -> None:
    made = _write(tmp_path, 8, 4)
    reader = CorpusReader(tmp_path)
    for sequence, (tokens, states) in zip(reader.sequences, made, strict=True):
        assert torch.equal(reader.tokens(sequence), tokens)
        assert torch.equal(reader.states(sequence), states)
    assert len(CorpusReader(tmp_path, lambda s: s.held_out).sequences) == 2
    with pytest.raises(ValueError, match="another target"):
        CorpusWriter(tmp_path, 12)


def test_store_survives_a_killed_writer(tmp_path: Path) -> None:
    made = _write(tmp_path, 8, 3)
    with (tmp_path / "index.jsonl").open("a") as stream:
        stream.write('{"index": 3, "ki')
    for name in ("tokens.bin", "states.bin"):
        with (tmp_path / name).open("ab") as stream:
            stream.write(b"half a sequence")
    writer = CorpusWriter(tmp_path, 8)
    assert writer.known == {0, 1, 2}
    tokens, states = torch.arange(5), torch.randn(4, 8).bfloat16()
    writer.add(tokens, states, index=3, kind="x", held_out=False, prompt=2, temperature=0.0)
    writer.close()
    reader = CorpusReader(tmp_path)
    assert [s.index for s in reader.sequences] == [0, 1, 2, 3]
    assert torch.equal(reader.states(reader.sequences[3]), states)
    assert torch.equal(reader.tokens(reader.sequences[0]), made[0][0])


def test_pack_aligns_tokens_states_and_steps(tmp_path: Path) -> None:
    made = _write(tmp_path, 8, 2)
    reader = CorpusReader(tmp_path)
    batch = pack(reader, reader.sequences, 3, 2, torch.device("cpu"))
    assert batch.packed.spans == ((0, 5, 2), (5, 6, 2))
    tokens, states = made[1]
    assert torch.equal(batch.packed.ids[5:], tokens[1:])
    assert torch.equal(batch.packed.states[5:], states[:, :6])
    # First query of the second sequence: state 2, reads token 3, drafts tokens 4 and 5.
    first = batch.counts[0]
    assert batch.future[first].tolist() == [int(tokens[4]), int(tokens[5])]
    assert torch.equal(batch.final[batch.source[first, 0]], states[3, 6:])
    assert batch.future[-1].tolist() == [-1, -1]
    assert batch.future[-2].tolist() == [int(tokens[-1]), -1]


def _chain_by_hand(head: Eagle3Head, embed: Tensor, batch: Packed, row: int, steps: int) -> Tensor:
    """Draft steps of one position with plain causal attention over an explicit key list."""
    layer, group = head.midlayer, head.shape.heads // head.shape.kv_heads
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def run(token: Tensor, hidden: Tensor, position: int) -> Tensor:
        wide = torch.cat([layer.input_layernorm(embed[token]), layer.hidden_norm(hidden)])[None]
        at = torch.tensor([position])
        keys.append(head._heads(layer.self_attn.k_proj(wide), at)[0])
        values.append(head._heads(layer.self_attn.v_proj(wide), None)[0])
        q = head._heads(layer.self_attn.q_proj(wide), at)[0]
        k = torch.stack(keys).repeat_interleave(group, 1)
        v = torch.stack(values).repeat_interleave(group, 1)
        weights = torch.softmax(torch.einsum("hd,nhd->hn", q, k) * head.shape.head_dim**-0.5, -1)
        hidden = hidden + layer.self_attn.o_proj(torch.einsum("hn,nhd->hd", weights, v).flatten())
        result: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return result

    outputs = []
    for position in range(row + 1):
        parts = batch.states[position].chunk(3)
        normed = [norm(x) for norm, x in zip(head.fc_norm, parts, strict=True)]
        hidden = run(batch.ids[position], head.fc(torch.cat(normed)), position)
    outputs.append(head.norm(hidden))
    for step in range(1, steps):
        hidden = run(batch.ids[row + step], hidden, row + step)
        outputs.append(head.norm(hidden))
    return torch.stack(outputs)


def test_unrolled_steps_equal_one_chain_at_a_time(target: LlamaTarget) -> None:
    torch.manual_seed(3)
    head = Eagle3Head(target.shape, TAPS, 16)
    lengths = (9, 6)
    parts = [
        Packed(torch.randint(3, 64, (n,)), torch.randn(n, 96), torch.arange(n), ((0, n, 2),))
        for n in lengths
    ]
    both = Packed(
        torch.cat([p.ids for p in parts]),
        torch.cat([p.states for p in parts]),
        torch.cat([p.positions for p in parts]),
        ((0, 9, 2), (9, 6, 2)),
    )
    with torch.no_grad():
        got = torch.stack(head.unroll(target.embed, both, 3), 1)
        for part, start in zip(parts, (0, 7), strict=True):
            for row in range(2, len(part.ids) - 2):
                want = _chain_by_hand(head, target.embed, part, row, 3)
                assert torch.allclose(got[start + row - 2], want, atol=1e-5)


def test_orthogonalised_has_singular_values_near_one() -> None:
    torch.manual_seed(4)
    for size in ((24, 40), (40, 24)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(size)).float())
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_walk_skips_what_was_accepted() -> None:
    # Six queries; the last has nothing left to draft.
    assert _walk([2, 4, 0, 1, 0, 0]) == [2, 1]
    assert _walk([0, 0, 0]) == [0, 0]


def test_draft_vocabulary_covers_the_answers(tmp_path: Path) -> None:
    _write(tmp_path, 8, 2)
    reader = CorpusReader(tmp_path)
    ids, coverage = choose_draft_vocab(reader, 64, 5)
    assert coverage == 1.0
    assert ids.tolist() == [3, 4, 5, 6, 7] or set(ids.tolist()) <= set(range(3, 8))
    assert choose_draft_vocab(reader, 64, 3)[1] < 1.0


def test_epochs_visit_every_sequence_once(tmp_path: Path) -> None:
    _write(tmp_path, 8, 9)
    sequences = CorpusReader(tmp_path).sequences
    first, second = (shuffled_groups(sequences, 12, 0, epoch) for epoch in (0, 1))
    assert sorted(s.index for group in first for s in group) == list(range(9))
    assert first != second
    assert first == shuffled_groups(sequences, 12, 0, 0)


@pytest.fixture
def copying(tmp_path: Path, target: LlamaTarget) -> Path:
    """A corpus whose texts repeat a cycle of three tokens, with the target's states of them.

    The soft targets are replaced by near-certain ones of the true next token, so that a head can
    be perfect only by learning the cycle.
    """
    random = torch.Generator().manual_seed(5)
    folder = tmp_path / "corpus"
    writer = CorpusWriter(folder, 4 * target.shape.hidden)
    for index in range(400):
        cycle = torch.randperm(20, generator=random)[:3] + 10
        tokens = cycle.repeat(10)[:28]
        _, taps = target.prefill(tokens[None, :-1], None, torch.zeros(1).long())
        sure = target.embed[tokens[1:]] * 20
        writer.add(
            tokens,
            torch.cat([taps[0], sure], -1).bfloat16(),
            index=index,
            kind="chat",
            held_out=index >= 390,
            prompt=8,
            temperature=0.0,
        )
    writer.close()
    return folder


SMALL = TrainConfig(
    draft_vocab=24,
    phases=((0.3, 1), (1.0, 3)),
    tokens=60_000,
    queries=200,
    lr=2e-2,
    warmup=5,
    checkpoint_s=1e9,
)


@pytest.mark.slow
def test_learns_to_copy_and_writes_a_fitting_head(
    tmp_path: Path, folder: Path, target: LlamaTarget, copying: Path
) -> None:
    trainer = Trainer(target, copying, tmp_path / "run", SMALL)
    records: list[dict[str, float]] = []
    assert trainer.run(on_log=records.append)
    assert records[-1]["loss"] < records[0]["loss"]
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in log] == records
    held = CorpusReader(copying, lambda s: s.held_out)
    figures = evaluate_head(trainer.head, trainer.embed, trainer.draft_ids, held, steps=3)
    assert figures["chat"].accepted > 1.5
    out = tmp_path / "head"
    published = publish(trainer, out, target_name="tiny", progress=lambda line: None)
    assert published == evaluate_head(trainer.head, trainer.embed, trainer.draft_ids, held)
    assert f"{trainer.progress['tokens']:9d}" in (out / "README.md").read_text()
    assert check_head(out, folder) == []
    head, draft_ids = load_head(out, LlamaShape.read(folder))
    assert torch.equal(draft_ids, trainer.draft_ids)
    again = evaluate_head(head, trainer.embed, draft_ids, held, steps=3)
    assert again["chat"].accepted == pytest.approx(figures["chat"].accepted, abs=0.1)


@pytest.mark.slow
def test_resume_gives_the_same_weights(tmp_path: Path, target: LlamaTarget, copying: Path) -> None:
    config = replace(SMALL, tokens=4000)
    whole = Trainer(target, copying, tmp_path / "whole", config)
    assert whole.run()
    killed = Trainer(target, copying, tmp_path / "parts", config)
    assert not killed.run(stop_after_s=0.0)
    for _ in range(6):
        part = Trainer(target, copying, tmp_path / "parts", config)
        if part.run(stop_after_s=0.05):
            break
    resumed = Trainer(target, copying, tmp_path / "parts", config)
    assert resumed.run()
    assert resumed.progress == whole.progress
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name]), name


def test_an_empty_corpus_is_refused(tmp_path: Path, target: LlamaTarget) -> None:
    CorpusWriter(tmp_path / "corpus", 128).close()
    with pytest.raises(ValueError, match="no training sequence"):
        Trainer(target, tmp_path / "corpus", tmp_path / "run", SMALL)


@pytest.mark.slow
def test_the_plan_is_fixed_and_keeps_held_out_prompts_apart() -> None:
    plan = plan_prompts(400, 0)
    assert plan == plan_prompts(400, 0)
    assert {entry.kind for entry in plan} == set(KINDS)
    assert len({entry.text for entry in plan}) == len(plan) == 400
    held = [entry for entry in plan if entry.held_out]
    assert 5 <= len(held) <= 45
    assert all(entry.temperature == 0 for entry in held)
