"""Broken inputs for a HYBRID server, each made from the bundled head and gate."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hybridspec.demo.lineup import Assets

SGLANG = str(Path(sys.executable).with_name("sglang"))
TIMEOUT_S = 240
"""A refusal takes about 15 s alone on two cores; several run at once."""


@dataclass(slots=True)
class Case:
    """What to start the server with. ``env`` is added to the environment."""

    head: Path | None
    gate: Path | None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a server start ended."""

    code: int
    output: str

    @property
    def last_line(self) -> str:
        """The last line of its output: what a user sees above the prompt."""
        return self.output.rstrip().splitlines()[-1]


def start(target: Path, case: Case) -> Outcome:
    """Run ``sglang serve`` with HYBRID until it ends.

    Raises:
        subprocess.TimeoutExpired: it did not end: it hung, or it served.
    """
    command = [SGLANG, "serve", "--model-path", str(target)]
    command += ["--speculative-algorithm", "HYBRID", "--max-total-tokens", "4096", *case.args]
    if case.head is not None:
        command += ["--speculative-draft-model-path", str(case.head)]
    if case.gate is not None:
        command += ["--hybrid-gate", str(case.gate)]
    done = subprocess.run(
        command,
        env={**os.environ, **case.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
    )
    return Outcome(done.returncode, done.stdout)


def _gate_copy(assets: Assets, folder: Path) -> Path:
    assert assets.gate is not None
    return Path(shutil.copytree(assets.gate, folder / "gate"))


def _head_copy(assets: Assets, folder: Path) -> Path:
    assert assets.head is not None
    return Path(shutil.copytree(assets.head, folder / "head"))


def _package(folder: Path, name: str, source: str) -> dict[str, str]:
    """A package that hides the installed one of the same name, as environment variables."""
    path = folder / "packages" / name
    path.mkdir(parents=True)
    (path / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(path.parent)}


def gate_missing(assets: Assets, folder: Path) -> Case:
    return Case(assets.head, folder / "nowhere")


def gate_truncated(assets: Assets, folder: Path) -> Case:
    gate = _gate_copy(assets, folder)
    model = gate / "gate.onnx"
    model.write_bytes(model.read_bytes()[:1000])
    return Case(assets.head, gate)


def gate_unknown_feature(assets: Assets, folder: Path) -> Case:
    gate = _gate_copy(assets, folder)
    manifest = json.loads((gate / "gate.json").read_text())
    manifest["features"][0] = "phase_of_the_moon"
    (gate / "gate.json").write_text(json.dumps(manifest))
    return Case(assets.head, gate)


def onnxruntime_absent(assets: Assets, folder: Path) -> Case:
    env = _package(folder, "onnxruntime", "raise ImportError('no onnxruntime here')\n")
    return Case(assets.head, assets.gate, env=env)


def head_not_given(assets: Assets, folder: Path) -> Case:
    return Case(None, None)


def head_missing(assets: Assets, folder: Path) -> Case:
    return Case(folder / "nowhere", None)


def head_without_tensor(assets: Assets, folder: Path) -> Case:
    from safetensors.torch import load_file, save_file

    head = _head_copy(assets, folder)
    tensors = load_file(head / "model.safetensors")
    del tensors["midlayer.self_attn.q_proj.weight"]
    save_file(tensors, head / "model.safetensors")
    return Case(head, None)


def head_of_other_vocabulary(assets: Assets, folder: Path) -> Case:
    head = _head_copy(assets, folder)
    config = json.loads((head / "config.json").read_text())
    config["vocab_size"] = 32000
    (head / "config.json").write_text(json.dumps(config))
    return Case(head, None)


def sglang_untested(assets: Assets, folder: Path) -> Case:
    # Found before the installed one, because this folder comes first on the path.
    metadata = folder / "sglang-0.9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.9.9\n")
    return Case(assets.head, None, env={"PYTHONPATH": str(folder)})


def unknown_setting(assets: Assets, folder: Path) -> Case:
    path = folder / "hybrid.yaml"
    path.write_text("polciy: cache\n")
    return Case(assets.head, None, ["--hybrid-config", str(path)])


def unsupported_flag(assets: Assets, folder: Path) -> Case:
    return Case(assets.head, None, ["--enable-two-batch-overlap"])


Maker = Callable[[Assets, Path], Case]

REFUSALS: dict[Maker, str] = {
    gate_missing: "gate: no folder at",
    gate_truncated: "is truncated or altered",
    gate_unknown_feature: "unknown features ['phase_of_the_moon']",
    onnxruntime_absent: "onnxruntime cannot be imported",
    head_not_given: "add --speculative-draft-model-path",
    head_missing: "does not exist",
    head_without_tensor: "lack 1 tensors: layers.0.self_attn.q_proj.weight",
    head_of_other_vocabulary: "32000",
    sglang_untested: "SGLang 0.9.9 is not a tested version",
    unknown_setting: "unknown key 'polciy'",
    unsupported_flag: "--enable-two-batch-overlap cannot be used with HYBRID",
}
"""Every refusal and what its line must say."""
