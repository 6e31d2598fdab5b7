"""Torch to a gate folder: parity, replacement, refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hybridspec.export.onnx import PARITY, export_gate
from hybridspec.gate.errors import GateError
from hybridspec.gate.model import GateModel
from hybridspec.gate.store import load_gate

NAMES = ["score", "draft_length", "prob_1"]


def model_and_rows() -> tuple[GateModel, NDArray[np.float32]]:
    torch.manual_seed(0)
    rows = (np.random.default_rng(0).random((300, 3)) * [30, 32, 1]).astype(np.float32)
    model = GateModel(3, 32, NAMES.index("draft_length"), hidden=(16,))
    model.fit_scaling(torch.from_numpy(rows))
    return model, rows


def test_curves_are_monotone_and_end_with_the_draft() -> None:
    model, rows = model_and_rows()
    with torch.no_grad():
        survival, accepted = model(torch.from_numpy(rows))
    curve = survival.numpy()
    assert (np.diff(curve, axis=1) <= 0).all()
    assert ((curve >= 0) & (curve <= 1)).all()
    assert (curve[np.arange(32) >= rows[:, 1:2]] == 0).all()
    np.testing.assert_allclose(accepted.numpy(), curve.sum(axis=1), rtol=1e-5)


@pytest.mark.slow
def test_export_has_parity_and_replaces_a_gate(tmp_path: Path) -> None:
    model, rows = model_and_rows()
    folder = tmp_path / "deep" / "gate"
    manifest = export_gate(model, NAMES, folder, rows=rows, training={"rows": 300})
    assert manifest.training["parity"] <= PARITY
    assert manifest.training["rows"] == 300
    gate = load_gate(folder, k=32)
    for count in (1, 7, 300):
        got = gate.predict(rows[:count])
        with torch.no_grad():
            survival, _ = model(torch.from_numpy(rows[:count]))
        assert np.abs(got.survival - survival.numpy()).max() <= PARITY
    (folder / "leftover").write_text("old")
    export_gate(model, NAMES, folder, rows=rows)
    assert sorted(path.name for path in folder.iterdir()) == ["gate.json", "gate.onnx"]
    assert [path.name for path in folder.parent.iterdir()] == ["gate"]
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_text("miaow")
    with pytest.raises(GateError, match="no gate folder"):
        export_gate(model, NAMES, other, rows=rows)
    assert (other / "cat.jpg").exists()
