"""Does an EAGLE3 head fit a target? Checked from files alone, before a server loads either.

SGLang leaves a parameter that the head's files do not hold uninitialised and says nothing; a head
of another target loads as long as the sizes agree. So names, shapes, vocabulary map, captured
layers and RoPE are compared here, as SGLang 0.5.23 reads them (``models/llama_eagle3.py``).

This module imports neither SGLang nor torch, and does not know how good a head is.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARCHITECTURE = "LlamaForCausalLMEagle3"
WARNING = "warning: "
_FLOATS = ("BF16", "F16", "F32")
_INTS = {"I64": "<i8", "I32": "<i4"}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a safetensors file: type name, shape, and where its bytes lie."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int


def check_head(head_dir: Path, target_dir: Path) -> list[str]:
    """Compare an EAGLE3 head's folder with its target's; both are Hugging Face folders.

    Reads ``config.json`` of both, the headers of the head's safetensors files and its ``d2t`` map.

    Returns:
        One line per problem; empty when the head fits. Lines that begin with :data:`WARNING` do not
        prevent serving (drafts may be poor); every other line does.
    """
    head, problem = _read_config(head_dir, "EAGLE3 head")
    target, target_problem = _read_config(target_dir, "target")
    if head is None or target is None:
        return [p for p in (problem, target_problem) if p]
    architectures = head.get("architectures") or []
    if ARCHITECTURE not in architectures:
        return [
            f"{head_dir} is not an EAGLE3 head: its architectures are {architectures}, "
            f"{ARCHITECTURE} is needed"
        ]
    missing = [k for k in _NEEDED if not isinstance(head.get(k), int)]
    missing += [k for k in ("draft_vocab_size",) if k not in head]
    if missing:
        return [f"{head_dir / 'config.json'} lacks {', '.join(missing)}"]
    lines = _check_config(head, target)
    tensors, file_lines = _read_tensors(head_dir)
    lines += file_lines
    if tensors:
        lines += _check_tensors(head, tensors)
        lines += _check_draft_vocab(head, target, tensors)
    return lines + _check_rope(head, target)


_NEEDED = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")


def _read_config(folder: Path, what: str) -> tuple[Json | None, str | None]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        reason = "has no config.json" if folder.is_dir() else "is not a folder"
        return None, f"{what} {folder} {reason}"
    except ValueError:
        return None, f"{path} is not valid JSON"
    if not isinstance(config, dict):
        return None, f"{path} is not a JSON object"
    return config, None


def _check_config(head: Json, target: Json) -> list[str]:
    lines = []
    hidden = target.get("hidden_size")
    for key in ("hidden_size", "target_hidden_size"):
        if key in head and head[key] != hidden:
            lines.append(f"the head's {key} is {head[key]}, the target's hidden size is {hidden}")
    if head["vocab_size"] != target.get("vocab_size"):
        lines.append(
            f"the head was made for a vocabulary of {head['vocab_size']} tokens, "
            f"the target has {target.get('vocab_size')}"
        )
    layers, count = _aux_layers(head), int(target.get("num_hidden_layers") or 0)
    # SGLang captures the input of layer i + 1, so the last layer's output is out of reach.
    wrong = [i for i in layers or [] if not isinstance(i, int) or not 0 <= i <= count - 2]
    if wrong:
        lines.append(
            f"the head reads target layers {wrong}, which a target of {count} layers cannot give "
            f"(0 to {count - 2})"
        )
    elif layers is None and len({2, count // 2, count - 3}) < 3:
        lines.append(f"a target of {count} layers has no three default layers for an EAGLE3 head")
    return lines


def _aux_layers(head: Json) -> list[int] | None:
    eagle = head.get("eagle_config") or {}
    layers: list[int] | None = eagle.get("eagle_aux_hidden_state_layer_ids")
    return layers or None


def _read_tensors(folder: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    """All tensors of the folder's safetensors files, by the name that SGLang gives them."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        if any(folder.glob("*.bin")):
            return {}, [f"{WARNING}{folder} has .bin weights; their tensors were not checked"]
        return {}, [f"{folder} has no .safetensors file"]
    found: dict[str, TensorEntry] = {}
    lines = []
    for file in files:
        try:
            found.update(_read_header(file))
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            lines.append(f"{file} is damaged or incomplete; copy or download it again")
    return found if not lines else {}, lines


def _read_header(file: Path) -> dict[str, TensorEntry]:
    """Tensors of one file. Raises ValueError if the file ends before its last tensor."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > size - 8:
            raise ValueError("header longer than the file")
        header = json.loads(stream.read(length))
    start = 8 + length
    entries = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if start + end > size:
            raise ValueError("tensor past the end of the file")
        shape = tuple(int(n) for n in entry["shape"])
        entries[_loaded_name(name)] = TensorEntry(
            entry["dtype"], shape, file, start + begin, start + end
        )
    return entries


def _loaded_name(name: str) -> str:
    for legacy, new in (
        ("midlayer", "layers.0"),
        ("aux_norm_low", "fc_norm.0"),
        ("aux_norm_mid", "fc_norm.1"),
        ("aux_norm_high", "fc_norm.2"),
    ):
        name = name.replace(legacy, new)
    return name.removeprefix("model.")


def expected_tensors(head: Json) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters that SGLang creates for this head's config."""
    hidden, heads = head["hidden_size"], head["num_attention_heads"]
    dim = head.get("head_dim") or hidden // heads
    kv = (head.get("num_key_value_heads") or heads) * dim
    inner = head["intermediate_size"]
    eagle = head.get("eagle_config") or {}
    taps = head.get("num_aux_hidden_states") or len(_aux_layers(head) or (0, 0, 0))
    fused = taps * (head.get("target_hidden_size") or hidden)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, fused), "norm.weight": (hidden,)}
    if head.get("bias"):
        shapes["fc.bias"] = (hidden,)
    if eagle.get("norm_before_fc", head.get("norm_before_fc")):
        shapes["input_norm.weight"] = (fused,)
    if head.get("fc_norm") or head.get("use_aux_norm"):
        shapes |= {f"fc_norm.{i}.weight": (fused // taps,) for i in range(taps)}
    for i in range(head.get("num_hidden_layers") or 1):
        wide = hidden * (2 if i == 0 else 1)
        layer = {
            "self_attn.q_proj": (heads * dim, wide),
            "self_attn.k_proj": (kv, wide),
            "self_attn.v_proj": (kv, wide),
            "self_attn.o_proj": (hidden, heads * dim),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "hidden_norm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    # With no draft vocabulary, or tied embeddings, the output layer is not the head's own.
    if head["draft_vocab_size"] is not None and not head.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (head["draft_vocab_size"], hidden)
    return shapes


def _check_tensors(head: Json, tensors: dict[str, TensorEntry]) -> list[str]:
    shapes = expected_tensors(head)
    lines = []
    missing = sorted(name for name in shapes if name not in tensors)
    if missing:
        lines.append(f"the head's files lack {len(missing)} tensors: {', '.join(missing[:4])}")
    for name, shape in shapes.items():
        entry = tensors.get(name)
        if entry is None:
            continue
        if entry.shape != shape:
            lines.append(
                f"{name} has shape {list(entry.shape)}; the head's config asks for {list(shape)}"
            )
        elif entry.dtype not in _FLOATS:
            lines.append(
                f"{name} is stored as {entry.dtype}; one of {', '.join(_FLOATS)} is needed"
            )
    return lines


def _check_draft_vocab(head: Json, target: Json, tensors: dict[str, TensorEntry]) -> list[str]:
    size, vocab = head["draft_vocab_size"], int(target.get("vocab_size") or 0)
    entry = tensors.get("d2t")
    if entry is None:
        if size is None or size == vocab or head.get("tie_word_embeddings"):
            return []
        return [f"the head drafts {size} of {vocab} tokens but has no d2t map"]
    if entry.dtype not in _INTS or entry.shape != (size,):
        return [f"d2t is {entry.dtype} {list(entry.shape)}; an integer per draft token is needed"]
    ids = read_d2t(entry) + np.arange(entry.shape[0])
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab):
        return [f"d2t points to tokens {ids.min()} to {ids.max()}; the target has 0 to {vocab - 1}"]
    if len(np.unique(ids)) != len(ids):
        return ["d2t maps several draft tokens to one target token"]
    return []


def read_d2t(entry: TensorEntry) -> NDArray[np.int64]:
    """The stored map, int64 ``[draft_vocab]``: target id minus draft id."""
    with entry.file.open("rb") as stream:
        stream.seek(entry.begin)
        raw = stream.read(entry.end - entry.begin)
    ids: NDArray[np.int64] = np.frombuffer(raw, dtype=_INTS[entry.dtype]).astype(np.int64)
    return ids


def _check_rope(head: Json, target: Json) -> list[str]:
    lines = []
    ours, theirs = _rope(head), _rope(target)
    if ours != theirs:
        lines.append(
            f"{WARNING}the head's RoPE (theta {ours[0]:g}, {ours[1]}) is not the target's "
            f"(theta {theirs[0]:g}, {theirs[1]})"
        )
    length = head.get("max_position_embeddings") or 0
    needed = target.get("max_position_embeddings") or 0
    if length < needed:
        lines.append(
            f"{WARNING}the head knows {length} positions, the target {needed}; "
            "drafts may be poor beyond"
        )
    return lines


def _rope(config: Json) -> tuple[float, str]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    return float(theta), str(rope.get("rope_type") or rope.get("type") or "default")
