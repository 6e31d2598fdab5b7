"""Broken inputs for a HYBRID server, each made from the bundled head and gate."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hybridspec.demo.lineup import Assets

SGLANG = str(Path(sys.executable).with_name("sglang"))
TIMEOUT_S = 240
"""A refusal takes about 15 s alone on two cores; others run beside it."""


@dataclass(slots=True)
class Case:
    """What to start the server with. ``env`` is added to the environment."""

    head: Path | None
    gate: Path | None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    algorithm: str | None = "HYBRID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a server start ended."""

    code: int
    output: str

    @property
    def last_line(self) -> str:
        """The last line of its output: what a user sees above the prompt."""
        return self.output.rstrip().splitlines()[-1]


def start_all(target: Path, cases: Mapping[str, Case], folder: Path) -> dict[str, Outcome]:
    """Run ``sglang serve`` with HYBRID for every case until it ends; logs go to ``folder``.

    Cases with an environment of their own are started as programs, all others are forked from one
    process, which saves them the imports.
    """
    alone = {name: case for name, case in cases.items() if case.env}
    forked = {name: case for name, case in cases.items() if not case.env}
    with ThreadPoolExecutor(1) as pool:
        programs = [pool.submit(_start, target, case) for case in alone.values()]
        starts = [
            {"args": _arguments(target, case), "log": str(folder / f"{name}.log")}
            for name, case in forked.items()
        ]
        forks = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("refusal_forks.py"))],
            input=json.dumps(starts),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        outcomes = {
            name: Outcome(code, (folder / f"{name}.log").read_text())
            for name, code in zip(forked, json.loads(forks.stdout.splitlines()[-1]), strict=True)
        }
        return outcomes | {
            name: program.result() for name, program in zip(alone, programs, strict=True)
        }


def _arguments(target: Path, case: Case) -> list[str]:
    args = ["--model-path", str(target), "--max-total-tokens", "4096"]
    if case.algorithm is not None:
        args += ["--speculative-algorithm", case.algorithm]
    if case.head is not None:
        args += ["--speculative-draft-model-path", str(case.head)]
    if case.gate is not None:
        args += ["--hybrid-gate", str(case.gate)]
    return [*args, *case.args]


def _start(target: Path, case: Case) -> Outcome:
    """As a program of its own.

    Raises:
        subprocess.TimeoutExpired: it did not end: it hung, or it served.
    """
    done = subprocess.run(
        [SGLANG, "serve", *_arguments(target, case)],
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


def _head_with(assets: Assets, folder: Path, **changes: int) -> Case:
    """The head with other values in its configuration."""
    head = _head_copy(assets, folder)
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, **changes}))
    return Case(head, None)


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
    return _head_with(assets, folder, vocab_size=32000)


def sglang_untested(assets: Assets, folder: Path) -> Case:
    # Found before the installed one, because this folder comes first on the path.
    metadata = folder / "sglang-0.9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.9.9\n")
    return Case(assets.head, None, env={"PYTHONPATH": str(folder)})


def gate_without_its_token_table(assets: Assets, folder: Path) -> Case:
    gate = _gate_copy(assets, folder)
    (gate / "tokens.npz").unlink()
    return Case(assets.head, gate)


def gate_manifest_broken(assets: Assets, folder: Path) -> Case:
    gate = _gate_copy(assets, folder)
    (gate / "gate.json").write_text("{")
    return Case(assets.head, gate)


def head_config_missing(assets: Assets, folder: Path) -> Case:
    head = _head_copy(assets, folder)
    (head / "config.json").unlink()
    return Case(head, None)


def head_truncated(assets: Assets, folder: Path) -> Case:
    head = _head_copy(assets, folder)
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    return Case(head, None)


def head_of_other_size(assets: Assets, folder: Path) -> Case:
    return _head_with(assets, folder, hidden_size=512)


def settings_missing(assets: Assets, folder: Path) -> Case:
    return Case(assets.head, None, ["--hybrid-config", str(folder / "nowhere.yaml")])


def traces_cannot_be_written(assets: Assets, folder: Path) -> Case:
    file = folder / "file"
    file.write_text("")
    return Case(assets.head, None, ["--hybrid-trace-dir", str(file / "traces")])


def flags_without_hybrid(assets: Assets, folder: Path) -> Case:
    return Case(None, None, ["--hybrid-policy", "cache"], algorithm=None)


def flags_with_another_algorithm(assets: Assets, folder: Path) -> Case:
    return Case(assets.head, None, ["--hybrid-policy", "cache"], algorithm="EAGLE3")


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
    gate_without_its_token_table: "token features need the target's token table",
    gate_manifest_broken: "gate.json",
    head_config_missing: "config.json",
    head_truncated: "model.safetensors",
    head_of_other_size: "512",
    settings_missing: "No such file",
    traces_cannot_be_written: "cannot be written",
    flags_without_hybrid: "need --speculative-algorithm HYBRID (got none)",
    flags_with_another_algorithm: "need --speculative-algorithm HYBRID (got EAGLE3)",
}
"""Every refusal and what its line must say."""

SETTINGS: dict[str, str] = {
    "polciy: cache": "unknown key 'polciy'",
    "policy: best": "unknown policy 'best'",
    "policy: [": "not valid YAML",
    "- cache": "must hold a mapping",
    "widths: [1, 8, 4]": "must ascend from 1",
    "widths: [2, 4]": "must ascend from 1",
    "widths: [1, 128]": "at most 64",
    "widths: wide": "must be a list of whole numbers",
    "tau: -1": "tau must be at least 0",
    "suffix_budget_mb: lots": "suffix_budget_mb must be int",
    "suffix_scope: everyone": "unknown suffix_scope 'everyone'",
    "gate_device: tpu": "unknown gate_device 'tpu'",
    "overlap: maybe": "unknown overlap 'maybe'",
    "trace_sample: 2": "at most 1",
    "profile: abacus": "unknown step-time profile 'abacus'",
    "profile: nowhere.json": "no file at nowhere.json",
}
"""Contents of ``--hybrid-config`` that are refused, and what the line must say."""

FLAGS: dict[str, str] = {
    "--hybrid-policy best": "unknown policy 'best'",
    "--hybrid-gate-device tpu": "unknown gate_device 'tpu'",
    "--enable-lora": "--enable-lora cannot be used with HYBRID",
    "--enable-two-batch-overlap": "--enable-two-batch-overlap cannot be used with HYBRID",
    "--enable-multi-layer-eagle": "--enable-multi-layer-eagle cannot be used with HYBRID",
    "--speculative-adaptive": "--speculative-adaptive cannot be used with HYBRID",
    "--speculative-use-rejection-sampling": "cannot be used with HYBRID",
    "--speculative-accept-threshold-single 0.5": "keeps the target's distribution",
    "--speculative-accept-threshold-acc 0.5": "keeps the target's distribution",
    "--speculative-eagle-topk 4": "--speculative-eagle-topk 4",
    "--speculative-num-draft-tokens 16": "--speculative-num-draft-tokens 16",
    "--speculative-num-steps 40": "--speculative-num-steps 40",
    "--attention-backend torch_native": "choose one of fa3, flashinfer, triton",
    "--page-size 16": "--page-size 16: SGLang allocates pages with Triton",
    "--pp-size 2": "pp size above 1",
    "--dp-size 2": "dp size above 1",
    "--disaggregation-mode prefill": "disaggregation is not supported",
    "--is-embedding": "--is-embedding cannot be used with HYBRID",
}
"""SGLang's and our flags that HYBRID refuses, and what the line must say."""


def all_cases(assets: Assets, folder: Callable[[], Path]) -> dict[str, tuple[Case, str]]:
    """Every refusal by name: the case, and what its line must say."""
    cases = {make.__name__: (make(assets, folder()), says) for make, says in REFUSALS.items()}
    for content, says in SETTINGS.items():
        path = folder() / "hybrid.yaml"
        path.write_text(content)
        cases[content] = (Case(assets.head, None, ["--hybrid-config", str(path)]), says)
    for flags, says in FLAGS.items():
        cases[flags] = (Case(assets.head, assets.gate, flags.split()), says)
    return cases


NAMES = [*(make.__name__ for make in REFUSALS), *SETTINGS, *FLAGS]
