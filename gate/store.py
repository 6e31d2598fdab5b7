"""Gate folders: load one, check it, predict with it. Does not train, export or decide."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.features import FeatureSet
from hybridspec.gate.manifest import MODEL_FILE, TOKENS_FILE, Manifest
from hybridspec.gate.observations import Observations
from hybridspec.gate.session import GateSession
from hybridspec.gate.tokens import TokenTable

# Slack for float32 rounding when a probe's outputs are checked.
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted fate of each row's cache draft; views that are valid until the gate's next call.

    Attributes:
        survival: float32 ``[rows, K]``, P(at least k+1 draft tokens are accepted), non-increasing.
        accepted_length: float32 ``[rows]``, expected accepted draft tokens, bonus excluded.
    """

    survival: NDArray[np.float32]
    accepted_length: NDArray[np.float32]


class Gate:
    """A loaded gate. Not thread-safe: predictions share one set of buffers."""

    def __init__(self, manifest: Manifest, features: FeatureSet, session: GateSession) -> None:
        self.manifest = manifest
        self.features = features
        self._session = session

    @property
    def k(self) -> int:
        """Length of the survival curve."""
        return self.manifest.k

    @property
    def fingerprint(self) -> int:
        """The first 48 bits of the model's sha256: a whole number that a float holds exactly."""
        return int(self.manifest.sha256[:12], 16)

    @property
    def provider(self) -> str:
        """onnxruntime's active execution provider."""
        return self._session.provider

    def judge(self, obs: Observations) -> Prediction:
        """Compute the features of ``obs`` and predict. Raises as :meth:`predict` does."""
        return self.run(self.fill(obs))

    def fill(self, obs: Observations) -> int:
        """Compute the features of ``obs`` into the session's input; how many rows it holds now.

        Raises:
            GateError: more rows than the session holds.
        """
        self._check_rows(obs.rows)
        self.features.compute(obs, self._session.input(obs.rows))
        return obs.rows

    def predict(self, matrix: NDArray[np.float32]) -> Prediction:
        """Predict from a feature matrix.

        Args:
            matrix: float32 ``[rows, len(self.features)]``.

        Raises:
            GateError: more rows than the session holds, or outputs that are not finite.
        """
        self._check_rows(len(matrix))
        self._session.input(len(matrix))[:] = matrix
        return self.run(len(matrix))

    def _check_rows(self, rows: int) -> None:
        if rows > self._session.max_rows:
            raise GateError(f"gate: {rows} rows, made for at most {self._session.max_rows}")

    def run(self, rows: int) -> Prediction:
        """Predict the first ``rows`` rows of the session's input. Raises as :meth:`predict`."""
        survival, accepted = self._session.run(rows)
        # A NaN anywhere in a curve reaches its sum, and the sum of these: one number to look at. A
        # NaN would win every comparison of a policy.
        if not math.isfinite(np.add.reduce(accepted)):
            raise GateError("gate: the model returned values that are not finite")
        return Prediction(survival, accepted)


def load_gate(
    folder: Path | str,
    *,
    table: TokenTable | None = None,
    provider: str = "cpu",
    max_rows: int = 512,
    k: int | None = None,
) -> Gate:
    """Load and check the gate in ``folder``.

    Args:
        folder: holds ``gate.json``, ``gate.onnx`` and, if it uses token features, ``tokens.npz``.
        table: the target's token flags; the folder's own if not given.
        provider: ``cpu``, ``cuda``, or ``auto``: the faster of those that are usable here.
        max_rows: most rows of one prediction.
        k: the K that the caller needs; None takes any.

    Raises:
        GateError: anything missing, truncated, altered, of another schema version, with unknown
            features or another K, or with outputs that are no survival curve on a probe input.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder)
    if k is not None and manifest.k != k:
        raise GateError(f"gate: {folder} predicts K={manifest.k} tokens, K={k} is needed")
    if table is None and (folder / TOKENS_FILE).is_file():
        table = TokenTable.load(folder / TOKENS_FILE)
    try:
        features = FeatureSet(manifest.features, table)
    except GateError as error:
        raise GateError(f"gate: {folder}: {error}") from None
    path = folder / MODEL_FILE
    if not path.is_file():
        raise GateError(f"gate: {folder} has no {MODEL_FILE}; export the gate again")
    model = path.read_bytes()
    if hashlib.sha256(model).hexdigest() != manifest.sha256:
        raise GateError(f"gate: {path} is truncated or altered (sha256 differs); copy it again")
    session = GateSession(model, len(features), manifest.k, provider=provider, max_rows=max_rows)
    gate = Gate(manifest, features, session)
    _probe(gate)
    return gate


def _probe(gate: Gate) -> None:
    """Refuse a gate whose outputs are no survival curves on plain, empty and extreme inputs."""
    levels = np.array([0.0, 0.5, 1.0, 8.0, 1000.0], np.float32)
    seen = gate.predict(np.repeat(levels[:, None], len(gate.features), axis=1))
    curve = seen.survival
    if not np.isfinite(curve).all():
        raise GateError("gate: probe: survival is not finite")
    if curve.min() < -_TOLERANCE or curve.max() > 1 + _TOLERANCE:
        raise GateError("gate: probe: survival leaves [0, 1]")
    if (np.diff(curve, axis=1) > _TOLERANCE).any():
        raise GateError("gate: probe: survival increases along the draft")
    if np.abs(curve.sum(axis=1) - seen.accepted_length).max() > _TOLERANCE * gate.k:
        raise GateError("gate: probe: accepted_length is not the sum of survival")
