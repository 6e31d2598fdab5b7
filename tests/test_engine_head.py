"""A server's EAGLE3 acceptance is what the trainer's evaluation says of the same text."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch

from engine_servers import EngineServers
from hybridspec.demo.eagle3.corpus import encode_chat
from hybridspec.demo.eagle3.evaluate import evaluate_head
from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget
from hybridspec.demo.eagle3.model import load_head
from hybridspec.demo.eagle3.store import CorpusReader, CorpusWriter
from hybridspec.demo.lineup import HERE
from hybridspec.demo.target import ensure_target
from hybridspec.loadtest.server import Server

HEAD = HERE / "head"
ASKED = (
    "Rename the function to `total` and return all of the code.\n\n```python\n"
    "def add_up(values):\n    result = 0\n    for value in values:\n        result += value\n"
    "    return result\n```",
    "Explain in three sentences why the sky is blue.",
)


def _serve(server: Server, target: Path) -> list[tuple[list[int], list[int], int, int]]:
    """Prompt ids, output ids, verify steps and accepted drafts of each request."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    found = []
    for text in ASKED:
        ids = encode_chat(tokenizer, text)
        body = {
            "input_ids": ids,
            "sampling_params": {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True},
        }
        reply = httpx.post(f"{server.url}/generate", json=body, timeout=300).json()
        meta = reply["meta_info"]
        found.append(
            (ids, reply["output_ids"], meta["spec_verify_ct"], meta["spec_num_correct_drafts"])
        )
    return found


@pytest.mark.engine
@pytest.mark.skipif(not HEAD.is_dir(), reason="no head is bundled")
def test_served_acceptance_is_the_evaluated_one(engine: EngineServers, tmp_path: Path) -> None:
    folder = ensure_target()
    served = _serve(engine("eagle3"), folder)
    head, draft_ids = load_head(HEAD, LlamaShape.read(folder))
    target = LlamaTarget(folder, torch.float32, head.taps)
    writer = CorpusWriter(tmp_path / "corpus", 4 * target.shape.hidden)
    for index, (ids, output, _, _) in enumerate(served):
        tokens = torch.tensor(ids + output)
        hidden, taps = target.prefill(tokens[None, :-1], None, torch.zeros(1, dtype=torch.int64))
        writer.add(
            tokens,
            torch.cat([taps, hidden], -1)[0].bfloat16(),
            index=index,
            kind="any",
            held_out=True,
            prompt=len(ids),
            temperature=0.0,
        )
    writer.close()
    reader = CorpusReader(tmp_path / "corpus")
    evaluated = evaluate_head(head, target.embed, draft_ids, reader)["all"]
    steps, accepted = sum(s[2] for s in served), sum(s[3] for s in served)
    assert evaluated.accepted == pytest.approx(accepted / steps, abs=0.1)
    assert evaluated.steps == pytest.approx(steps, rel=0.1)
