"""A trained gate to a gate folder: ONNX model, manifest, parity check. Trains nothing."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.manifest import INPUT, MODEL_FILE, OUTPUTS, TOKENS_FILE, Manifest
from hybridspec.gate.model import GateModel
from hybridspec.gate.session import GateSession
from hybridspec.gate.tokens import TokenTable

# Largest difference between Torch and onnxruntime that is float32 rounding.
PARITY = 1e-5


def export_gate(
    model: GateModel,
    features: Sequence[str],
    folder: Path | str,
    *,
    rows: NDArray[np.float32],
    table: TokenTable | None = None,
    training: dict[str, Any] | None = None,
) -> Manifest:
    """Write ``model`` as a gate folder, replacing an older one there.

    Args:
        model: trained network; not changed but for eval mode.
        features: names of its input columns, in order.
        folder: the gate folder to make.
        rows: float32 ``[n, len(features)]``, real feature rows for the parity check.
        table: token flags to store beside the model, for gates with token features.
        training: summary for the manifest.

    Returns:
        The manifest written.

    Raises:
        GateError: Torch and ONNX outputs differ by more than ``PARITY``, or ``folder`` exists and
            is no gate folder.
    """
    folder = Path(folder)
    k = len(model.position)
    content = to_onnx(model.eval(), len(features))
    worst = parity(model, content, _with_random(rows[:512]), k)
    if not worst <= PARITY:
        raise GateError(f"export: Torch and onnxruntime differ by {worst:.1e}, at most {PARITY}")
    digest = hashlib.sha256(content).hexdigest()
    summary = {**(training or {}), "parity": worst}
    manifest = Manifest(tuple(features), k, digest, summary)
    _write(folder, content, manifest, table)
    return manifest


def to_onnx(model: GateModel, features: int) -> bytes:
    """The model as one self-contained ONNX file with a free number of rows."""
    example = torch.zeros(2, features)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as temporary:
        warnings.simplefilter("ignore")  # the exporter warns about its own dependencies
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        path = Path(temporary) / MODEL_FILE
        torch.onnx.export(
            model,
            (example,),
            path,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes={"rows": {0: torch.export.Dim("rows", min=1)}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        return path.read_bytes()


def parity(model: GateModel, content: bytes, rows: NDArray[np.float32], k: int) -> float:
    """Largest absolute difference of any output between Torch and onnxruntime on ``rows``."""
    session = GateSession(content, rows.shape[1], k, max_rows=len(rows))
    worst = 0.0
    for count in (1, min(8, len(rows)), len(rows)):
        session.input(count)[:] = rows[:count]
        got = session.run(count)
        with torch.no_grad():
            want = model(torch.from_numpy(rows[:count]))
        for ours, theirs in zip(got, want, strict=True):
            # accepted_length sums k terms: compare it per term.
            terms = 1 if ours.ndim == 2 else k
            worst = max(worst, float(np.abs(ours - theirs.numpy()).max()) / terms)
    return worst


def _with_random(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Real rows followed by as many random ones of the same range, so that both are compared."""
    noise = np.random.default_rng(0).random(rows.shape, np.float32)
    both: NDArray[np.float32] = np.concatenate([rows, noise * rows.max(axis=0, initial=0.0)])
    return both.astype(np.float32, copy=False)


def _write(folder: Path, content: bytes, manifest: Manifest, table: TokenTable | None) -> None:
    """Put a complete folder in place by renaming, so that a reader never sees half a gate (for an
    instant between two renames it may see none)."""
    if folder.exists() and not (folder / MODEL_FILE).exists() and any(folder.iterdir()):
        raise GateError(f"export: {folder} exists and is no gate folder; choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    made.chmod(0o755)
    (made / MODEL_FILE).write_bytes(content)
    manifest.write(made)
    if table is not None:
        table.save(made / TOKENS_FILE)
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
        os.rename(folder, old)
        os.rename(made, folder)
        shutil.rmtree(old)
    else:
        os.rename(made, folder)
