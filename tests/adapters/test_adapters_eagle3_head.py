"""The fit of an EAGLE3 head to a target, one test per way not to fit."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridspec.adapters.eagle3_head import WARNING, check_head, expected_tensors

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "num_hidden_layers": 12,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}
HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "vocab_size": 100,
    "draft_vocab_size": 10,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
}
_NUMPY = {"F32": np.float32, "I64": np.int64}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    header, blobs, at = {}, [], 0
    for name, array in tensors.items():
        blob = array.tobytes()
        dtype = {np.dtype(t): n for n, t in _NUMPY.items()}[array.dtype]
        end = at + len(blob)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, end]}
        blobs.append(blob)
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Folders:
    """A target and a head that fit each other, to be spoilt by a test."""

    def __init__(self, root: Path) -> None:
        self.target, self.head = root / "target", root / "head"
        self.target.mkdir()
        self.head.mkdir()
        self.target_config, self.config = dict(TARGET), dict(HEAD)
        self.tensors: dict[str, np.ndarray[Any, Any]] = {
            name.replace("layers.0", "midlayer"): np.zeros(shape, np.float32)
            for name, shape in expected_tensors(HEAD).items()
        }
        self.tensors["d2t"] = np.arange(10, dtype=np.int64) * 3

    def check(self) -> list[str]:
        (self.target / "config.json").write_text(json.dumps(self.target_config))
        (self.head / "config.json").write_text(json.dumps(self.config))
        write_safetensors(self.head / "model.safetensors", self.tensors)
        lines = check_head(self.head, self.target)
        assert all("\n" not in line for line in lines)
        return lines


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_a_fitting_head_has_no_problems(folders: Folders) -> None:
    assert folders.check() == []


def test_modern_names_with_model_prefix_fit(folders: Folders) -> None:
    folders.tensors = {
        f"model.{name.replace('midlayer', 'layers.0')}" if name != "lm_head.weight" else name: array
        for name, array in folders.tensors.items()
        if name != "d2t"
    } | {"d2t": folders.tensors["d2t"]}
    assert folders.check() == []


def test_missing_folder_and_config(folders: Folders) -> None:
    folders.check()
    assert "is not a folder" in check_head(folders.head / "x", folders.target)[0]
    (folders.head / "config.json").unlink()
    assert "has no config.json" in check_head(folders.head, folders.target)[0]
    (folders.head / "config.json").write_text("{")
    assert "not valid JSON" in check_head(folders.head, folders.target)[0]


def test_another_architecture(folders: Folders) -> None:
    folders.config["architectures"] = ["LlamaForCausalLM"]
    assert "not an EAGLE3 head" in folders.check()[0]


def test_incomplete_config(folders: Folders) -> None:
    del folders.config["draft_vocab_size"]
    del folders.config["intermediate_size"]
    assert "lacks intermediate_size, draft_vocab_size" in folders.check()[0]


@pytest.mark.parametrize(
    "name", ["fc.weight", "midlayer.self_attn.k_proj.weight", "lm_head.weight"]
)
def test_missing_tensor(folders: Folders, name: str) -> None:
    del folders.tensors[name]
    assert name.replace("midlayer", "layers.0") in folders.check()[0]


def test_wrong_shape_and_type(folders: Folders) -> None:
    folders.tensors["fc.weight"] = np.zeros((16, 32), np.float32)
    folders.tensors["norm.weight"] = np.zeros(16, np.int64)
    lines = folders.check()
    assert any("fc.weight has shape [16, 32]" in line for line in lines)
    assert any("norm.weight is stored as I64" in line for line in lines)


def test_head_dim_must_agree_with_the_shapes(folders: Folders) -> None:
    folders.config["head_dim"] = 8
    assert any("self_attn.q_proj" in line for line in folders.check())


def test_other_hidden_size_or_vocabulary(folders: Folders) -> None:
    folders.target_config |= {"hidden_size": 32, "vocab_size": 101}
    lines = folders.check()
    assert "hidden size is 32" in lines[0]
    assert "vocabulary of 100 tokens" in lines[1]


@pytest.mark.parametrize("layers", [[1, 5, 11], [-1, 5, 8], [1, 5, "8"]])
def test_layers_that_the_target_does_not_have(folders: Folders, layers: list[Any]) -> None:
    folders.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": layers}
    assert "cannot give (0 to 10)" in folders.check()[0]


def test_default_layers_need_a_deep_enough_target(folders: Folders) -> None:
    del folders.config["eagle_config"]
    assert folders.check() == []
    folders.target_config["num_hidden_layers"] = 4
    assert "no three default layers" in folders.check()[0]


def test_draft_vocabulary_map(folders: Folders) -> None:
    good = folders.tensors["d2t"]
    folders.tensors["d2t"] = good + 90
    assert "points to tokens" in folders.check()[0]
    folders.tensors["d2t"] = good - 1
    assert "points to tokens -1" in folders.check()[0]
    folders.tensors["d2t"] = -np.arange(10, dtype=np.int64)
    assert "several draft tokens" in folders.check()[0]
    folders.tensors["d2t"] = good[:5]
    assert "d2t is I64 [5]" in folders.check()[0]
    del folders.tensors["d2t"]
    assert "no d2t map" in folders.check()[0]


def test_a_full_vocabulary_needs_no_map(folders: Folders) -> None:
    folders.config["draft_vocab_size"] = None
    del folders.tensors["d2t"], folders.tensors["lm_head.weight"]
    assert folders.check() == []


def test_truncated_file(folders: Folders) -> None:
    folders.check()
    path = folders.head / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 60, len(whole) - 1):
        path.write_bytes(whole[:size])
        lines = check_head(folders.head, folders.target)
        assert "damaged or incomplete" in lines[0]
    path.unlink()
    assert "no .safetensors file" in check_head(folders.head, folders.target)[0]


def test_rope_and_length_are_warnings(folders: Folders) -> None:
    folders.config["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "default"}
    folders.config["max_position_embeddings"] = 32
    lines = folders.check()
    assert len(lines) == 2
    assert all(line.startswith(WARNING) for line in lines)
    assert "theta 10000," in lines[0]


def test_bin_weights_are_a_warning(folders: Folders) -> None:
    folders.check()
    (folders.head / "model.safetensors").rename(folders.head / "pytorch_model.bin")
    lines = check_head(folders.head, folders.target)
    assert all(line.startswith(WARNING) for line in lines)
    assert "not checked" in lines[0]
