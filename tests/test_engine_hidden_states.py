"""SGLang's auxiliary hidden states are the ones that the head's trainer feeds it."""

from __future__ import annotations

import httpx
import pytest
import torch

from engine_servers import EngineServers
from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget
from hybridspec.demo.eagle3.pipeline import default_taps
from hybridspec.demo.target import ensure_target

ANSWER = 6


@pytest.mark.engine
def test_captured_states_equal_the_trainers(engine: EngineServers) -> None:
    folder = ensure_target()
    ids = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
    request = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True},
        "return_hidden_states": True,
    }
    url = engine("states").url
    reply = httpx.post(f"{url}/generate", json=request, timeout=120).json()
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
