"""A trained head as a Hugging Face folder that stock SGLang loads, with its model card.

This module does not train or measure; it is told the figures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from hybridspec.demo.eagle3.llama import LlamaShape
from hybridspec.demo.eagle3.model import Eagle3Head

CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
tags: [eagle3, speculative-decoding, sglang]
---
# EAGLE3 head for {target}

A one-layer EAGLE-3 draft head (arXiv 2503.01840), trained by `hybridspec demo train-head`.
{parameters:.1f} million parameters, bfloat16, draft vocabulary {draft_vocab} of {vocab} tokens
({coverage:.1%} of the training answers' tokens). It reads the input of target layers {taps}, which
are the layers that SGLang captures for this target by default.

    sglang serve --model-path <target> --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path <this folder> --speculative-num-steps 4 \\
        --speculative-eagle-topk 1 --speculative-num-draft-tokens 5

## Data
{data}

No text is stored here. Prompts: this project's own templates; functions and docstrings of the
Python standard library (PSF licence 2.0); where present, Debian's package documents and common
licence texts (each under its own package's licence). Answers: the target's own ({target},
Apache-2.0).

## Training
{training}

## Held-out figures
Greedy, chains of 4 draft tokens, whole prompts held out (functions and passages too). Accepted
draft tokens per step, bonus token excluded; then the share of steps with at least 1, 2, 3, 4
accepted.

{figures}

The curve, on the first of these answers, against positions trained on (repeats counted):

{curve}

## Licence
Apache-2.0, as the target.
"""


def write_head(
    folder: Path,
    head: Eagle3Head,
    draft_ids: Tensor,
    *,
    target_name: str,
    coverage: float,
    data: str,
    training: str,
    figures: Sequence[str],
    curve: Sequence[str] = (),
) -> None:
    """Write ``config.json``, ``model.safetensors`` (bfloat16) and ``README.md``.

    The folder appears by a rename; a former one is replaced.

    Args:
        folder: to write.
        head: trained head.
        draft_ids: int64 ``[draft_vocab]`` target ids, ascending.
        target_name: for the card.
        coverage: share of answer tokens inside the draft vocabulary.
        data: a paragraph on the corpus.
        training: a paragraph on the run.
        figures: lines of measured acceptance.
        curve: lines of acceptance during training.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    config = head_config(head.shape, head.taps, len(draft_ids))
    (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {
        name: tensor.detach().cpu().bfloat16().contiguous()
        for name, tensor in head.state_dict().items()
    }
    # SGLang's convention: d2t is target id minus draft id; t2d marks the target ids in use.
    tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
    tensors["t2d"] = torch.zeros(head.shape.vocab, dtype=torch.bool)
    tensors["t2d"][draft_ids] = True
    save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    card = CARD.format(
        target=target_name,
        parameters=sum(p.numel() for p in head.parameters()) / 1e6,
        draft_vocab=len(draft_ids),
        vocab=head.shape.vocab,
        coverage=coverage,
        taps=", ".join(str(tap) for tap in head.taps),
        data=data,
        training=training,
        figures="\n".join(f"    {line}" for line in figures),
        curve="\n".join(f"    {line}" for line in curve),
    )
    (part / "README.md").write_text(card, encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(part, folder)


def head_config(shape: LlamaShape, taps: tuple[int, ...], draft_vocab: int) -> dict[str, object]:
    """The head's ``config.json``: the target's sizes, one layer, and the captured layers.

    SGLang captures the input of layer ``i + 1`` for a listed layer ``i``.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocab,
        "draft_vocab_size": draft_vocab,
        "tie_word_embeddings": False,
        "fc_norm": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": shape.eos[0],
        "dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in taps],
            "use_aux_hidden_state": True,
        },
    }
