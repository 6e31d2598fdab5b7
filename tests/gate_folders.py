"""Gate folders for tests, made without Torch and without training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hybridspec.gate.manifest import Manifest

NAMES = ("score", "draft_length")
K = 4
CURVE = (0.9, 0.5, 0.25, 0.1)


def constant_model(
    curve: tuple[float, ...] = CURVE, features: int = 2, sum_name: str = "accepted_length"
) -> bytes:
    """An ONNX model that answers ``curve`` for every row."""
    weight = numpy_helper.from_array(np.zeros((features, len(curve)), np.float32), "w")
    bias = numpy_helper.from_array(np.array(curve, np.float32), "b")
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["features", "w", "b"], ["survival"]),
            helper.make_node("ReduceSum", ["survival", "axes"], [sum_name], keepdims=0),
        ],
        "gate",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", features])],
        [
            helper.make_tensor_value_info("survival", TensorProto.FLOAT, ["rows", len(curve)]),
            helper.make_tensor_value_info(sum_name, TensorProto.FLOAT, ["rows"]),
        ],
        [weight, bias, axes],
    )
    opset = [helper.make_opsetid("", 17)]
    model: bytes = onnx.ModelProto.SerializeToString(
        helper.make_model(graph, opset_imports=opset, ir_version=9)
    )
    return model


def gate_folder(path: Path, model: bytes | None = None, **changes: Any) -> Path:
    """A gate folder around ``model``, made or written over, with some manifest fields changed
    (None drops one)."""
    model = constant_model() if model is None else model
    k = changes.pop("k_of_model", K)
    path.mkdir(exist_ok=True)
    (path / "gate.onnx").write_bytes(model)
    Manifest(NAMES, k, hashlib.sha256(model).hexdigest()).write(path)
    content = {**json.loads((path / "gate.json").read_text()), **changes}
    (path / "gate.json").write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )
    return path
