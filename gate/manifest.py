"""The manifest of a gate folder: what ``gate.json`` says. Loads no model and reads no weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hybridspec.gate.errors import GateError

SCHEMA = 1
LONGEST = 255
"""Most draft tokens that a gate may judge: flags of so many are counted in one byte each."""
MODEL_FILE = "gate.onnx"
MANIFEST_FILE = "gate.json"
TOKENS_FILE = "tokens.npz"  # only in gates with token features
INPUT = "features"
OUTPUTS = ("survival", "accepted_length")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a gate is.

    Attributes:
        features: names in the order of the model's input columns.
        k: length of the survival curve, in draft tokens.
        sha256: of ``gate.onnx``, in hexadecimal.
        training: free-form summary (data, metrics, settings); for people, never for decisions.
        outputs: names of the model's outputs.
        schema: version of this layout.
    """

    features: tuple[str, ...]
    k: int
    sha256: str
    training: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = OUTPUTS
    schema: int = SCHEMA

    def write(self, folder: Path) -> None:
        """Write ``gate.json`` into ``folder``."""
        (folder / MANIFEST_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read ``gate.json`` from ``folder``.

        Raises:
            GateError: folder or file missing, not JSON, another schema version, a missing or
                malformed field.
        """
        if not folder.is_dir():
            raise GateError(f"gate: no folder at {folder}")
        path = folder / MANIFEST_FILE
        if not path.is_file():
            raise GateError(f"gate: {folder} has no {MANIFEST_FILE}; is it a gate folder?")
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise GateError(f"gate: {path} is not readable JSON ({error}); export again") from None
        if not isinstance(content, dict):
            raise GateError(f"gate: {path} must hold one JSON object; export again")
        if content.get("schema") != SCHEMA:
            raise GateError(
                f"gate: {path} has schema {content.get('schema')!r}, this version reads {SCHEMA}; "
                "export the gate again or install the hybridspec that made it"
            )
        return cls._checked(path, content)

    @classmethod
    def _checked(cls, path: Path, content: dict[str, Any]) -> Manifest:
        features, k = content.get("features"), content.get("k")
        if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
            raise GateError(f"gate: {path}: 'features' must be a list of names; export again")
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= LONGEST:
            raise GateError(
                f"gate: {path}: 'k' must be a whole number from 1 to {LONGEST}, got {k!r}"
            )
        if tuple(content.get("outputs", ())) != OUTPUTS:
            raise GateError(
                f"gate: {path}: 'outputs' must be {list(OUTPUTS)}, got {content.get('outputs')!r}"
            )
        digest, training = content.get("sha256"), content.get("training", {})
        if not isinstance(digest, str) or not isinstance(training, dict):
            raise GateError(f"gate: {path}: 'sha256' or 'training' is malformed; export again")
        return cls(tuple(features), k, digest, training)
