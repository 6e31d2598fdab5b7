"""SGLang's auxiliary hidden states are the ones that the head's trainer feeds it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch

from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget
from hybridspec.demo.eagle3.pipeline import default_taps
from hybridspec.demo.target import ensure_target
from hybridspec.loadtest.server import Server

ANSWER = 6


@pytest.mark.engine
def test_captured_states_equal_the_trainers(tmp_path: Path) -> None:
    folder = ensure_target()
    ids = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
    # SGLang's own switch: EAGLE3 names the capture convention, and no draft is loaded.
    args = ["--model-path", str(folder), "--dtype", "float32", "--max-running-requests", "4"]
    args += ["--max-total-tokens", "4096", "--speculative-algorithm", "EAGLE3"]
    args += ["--enable-return-aux-hidden-states"]
    request = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True},
        "return_hidden_states": True,
    }
    server = Server(args, log_path=tmp_path / "server.log")
    try:
        server.start()
        server.wait_ready()
        reply = httpx.post(f"{server.url}/generate", json=request, timeout=120).json()
    finally:
        server.stop()
    # One block for the prompt, then one state per decoded token.
    blocks = [
        torch.tensor(block).reshape(-1, 3 * 576) for block in reply["meta_info"]["hidden_states"]
    ]
    served = torch.cat(blocks)
    taps = default_taps(LlamaShape.read(folder).layers)
    target = LlamaTarget(folder, torch.float32, taps)
    text = torch.tensor([ids + reply["output_ids"][:-1]])
    _, trained = target.prefill(text, None, torch.zeros(1, dtype=torch.int64))
    assert served.shape == trained[0].shape
    scale = trained.abs().mean()
    assert float((served - trained[0]).abs().max() / scale) < 1e-2
