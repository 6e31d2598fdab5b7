"""Gate folders: a hand-made one is served, broken ones are refused with their own line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gate_folders import NAMES, K, constant_model, gate_folder
from hybridspec.gate import session
from hybridspec.gate.errors import GateError
from hybridspec.gate.features import FeatureSet
from hybridspec.gate.observations import Observations
from hybridspec.gate.store import load_gate


def test_a_gate_made_elsewhere_is_served(tmp_path: Path) -> None:
    gate = load_gate(gate_folder(tmp_path / "gate"), k=K)
    assert gate.k == K
    assert gate.provider == "CPUExecutionProvider"
    for rows in (1, 3, 64, 3, 512):
        seen = gate.predict(np.ones((rows, 2), np.float32))
        np.testing.assert_allclose(seen.survival, np.tile([0.9, 0.5, 0.25, 0.1], (rows, 1)))
        np.testing.assert_allclose(seen.accepted_length, np.full(rows, 1.75), rtol=1e-6)
    assert gate.predict(np.ones((0, 2), np.float32)).survival.shape == (0, K)
    with pytest.raises(GateError, match="at most 512"):
        gate.predict(np.ones((513, 2), np.float32))


def test_judging_observations_equals_predicting_their_features(tmp_path: Path) -> None:
    model = constant_model()
    gate = load_gate(gate_folder(tmp_path / "gate", model))
    obs = Observations.allocate(5, 8)
    obs.length[:] = np.arange(5)
    judged = gate.judge(obs).survival.copy()
    matrix: NDArray[np.float32] = FeatureSet(NAMES).compute(obs)
    assert (judged == gate.predict(matrix).survival).all()


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"schema": 2}, "schema 2, this version reads 1"),
    "no schema": ({"schema": None}, "schema None"),
    "unknown feature": ({"features": ["score", "mood"]}, r"unknown features \['mood'\]; valid are"),
    "token feature": ({"features": ["score", "draft_digit"]}, "token table"),
    "too many features": ({"features": ["score", "draft_length", "prob_1"]}, "has 3 features"),
    "features no list": ({"features": "score"}, "list of names"),
    "k": ({"k": 8}, "expected K=8"),
    "k no number": ({"k": "four"}, "whole number from 1"),
    "outputs": ({"outputs": ["y"]}, "'outputs' must be"),
    "hash": ({"sha256": "0" * 64}, "truncated or altered"),
    "no hash": ({"sha256": None}, "malformed"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_manifests_are_refused(tmp_path: Path, name: str) -> None:
    changes, message = BROKEN[name]
    with pytest.raises(GateError, match=message) as caught:
        load_gate(gate_folder(tmp_path / "gate", **changes))
    assert "\n" not in str(caught.value)


MODELS: dict[str, tuple[bytes, str]] = {
    "not onnx": (b"hello", "cannot load the model"),
    "increasing": (constant_model((0.1, 0.5, 0.5, 0.5)), "increases"),
    "above one": (constant_model((1.5, 0.5, 0.5, 0.5)), "leaves"),
    "negative": (constant_model((0.5, 0.5, 0.5, -0.5)), "leaves"),
    "not finite": (constant_model((float("nan"),) * 4), "not finite"),
    "other K": (constant_model((0.5,) * 5), "expected K=4"),
    "other names": (constant_model((0.5,) * 4, sum_name="length"), "must map features to"),
    "other features": (constant_model((0.5,) * 4, features=3), "manifest has 2 features"),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_broken_models_are_refused(tmp_path: Path, name: str) -> None:
    model, message = MODELS[name]
    with pytest.raises(GateError, match=message) as caught:
        load_gate(gate_folder(tmp_path / "gate", model))
    assert "\n" not in str(caught.value)


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="no folder at"):
        load_gate(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GateError, match=r"has no gate\.json"):
        load_gate(tmp_path / "empty")
    gate = gate_folder(tmp_path / "gate")
    model = (gate / "gate.onnx").read_bytes()
    (gate / "gate.onnx").write_bytes(model[: len(model) // 2])
    with pytest.raises(GateError, match="truncated or altered"):
        load_gate(gate)
    (gate / "gate.onnx").unlink()
    with pytest.raises(GateError, match=r"has no gate\.onnx"):
        load_gate(gate)
    for text in ("{", "[]"):
        (gate / "gate.json").write_text(text)
        with pytest.raises(GateError, match="JSON"):
            load_gate(gate)


def test_wrong_k_and_provider_are_refused(tmp_path: Path) -> None:
    gate = gate_folder(tmp_path / "gate")
    with pytest.raises(GateError, match="K=32 is needed"):
        load_gate(gate, k=32)
    with pytest.raises(GateError, match="unknown provider"):
        load_gate(gate, provider="tpu")


def test_auto_takes_the_faster_of_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gate_folder(tmp_path / "gate")
    known = load_gate(gate)
    rows = np.ones((3, len(known.features)), np.float32)
    expected = known.predict(rows).survival.copy()
    # Stands in for a GPU: the same provider again, found slow, then fast.
    monkeypatch.setitem(session._DEVICES, "cuda", session._DEVICES["cpu"])
    for seconds in ([1.0, 2.0], [2.0, 1.0]):
        monkeypatch.setattr(session.GateSession, "_seconds", lambda self, s=seconds: s.pop(0))
        loaded = load_gate(gate, provider="auto")
        assert not seconds, "both were timed"
        assert (loaded.predict(rows).survival == expected).all()
        assert loaded.provider == "CPUExecutionProvider"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_cuda_without_a_gpu_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="needs a GPU that torch can use; use 'cpu'"):
        load_gate(gate_folder(tmp_path / "gate"), provider="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_both_devices_predict_the_same(tmp_path: Path) -> None:
    gate = gate_folder(tmp_path / "gate")
    here, there = load_gate(gate, provider="cpu"), load_gate(gate, provider="cuda")
    for rows in (1, 8, 512):
        features = np.random.default_rng(rows).random((rows, len(here.features)), np.float32)
        expected = here.predict(features).survival
        np.testing.assert_allclose(there.predict(features).survival, expected, atol=1e-3)


def test_absent_onnxruntime_is_one_clear_line(tmp_path: Path) -> None:
    gate = gate_folder(tmp_path / "gate")
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from hybridspec.gate.store import load_gate\n"
        "from hybridspec.gate.errors import GateError\n"
        f"try: load_gate({str(gate)!r})\n"
        "except GateError as error: print(error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "onnxruntime cannot be imported" in done.stdout
    assert "pip install 'hybridspec[gate]'" in done.stdout
