"""HYBRID's own configuration: flags, the ``--hybrid-config`` file, and the way to child processes.

SGLang starts its scheduler in child processes and carries only its own record there, so ours
travels in one environment variable. This module does not import SGLang.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hybridspec.gate import policy, session
from hybridspec.gate.errors import GateError
from hybridspec.gate.policy import SERVED_LADDER

NAME = "HYBRID"
"""The algorithm's name for ``--speculative-algorithm``, which SGLang takes in any case."""
ENV = "HYBRIDSPEC_CONFIG"
"""Environment variable that holds the configuration as JSON for child processes and ``Engine``."""

GATE_DEVICES = session.DEVICES
POLICIES = tuple(reversed(policy.POLICIES))
SCOPES = ("salt", "request", "global")
OVERLAPS = ("auto", "always", "never")
BRANCHES = ("auto", "never")


class ConfigError(ValueError):
    """A configuration that HYBRID cannot start with; the message is one line."""


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Everything HYBRID can be told. Field names are the keys of ``--hybrid-config``.

    Attributes:
        gate: folder of the gate, or None to decide without one.
        gate_device: where the gate runs, one of :data:`GATE_DEVICES`; ``auto`` takes the faster.
        policy: one of :data:`POLICIES`.
        widths: verify widths in tokens per request, root (bonus) token included; rising from 1.
        tau: ``threshold``: the cache draft is used when its predicted accepted length exceeds this.
            6 is the figure of arXiv 2606.01019.
        suffix_depth: longest suffix that the trees match, tokens.
        suffix_budget_mb: memory that the suffix trees may use, MiB.
        suffix_factor: draft length per matched token (arctic-inference's ``max_spec_factor``).
        suffix_min_prob: least path probability of a drafted token.
        suffix_scope: whose responses a request may be offered, one of :data:`SCOPES`: those of the
            same cache salt and LoRA adapter, none but its own, or everyone's.
        overlap: whether steps are planned while the results of the one before are taken in
            (SGLang's overlap scheduling): ``auto`` as SGLang would, which is not on a CPU;
            ``always``; ``never``.
        branches: whether rows may verify both drafts side by side; ``auto``: where the attention
            backend can.
        profile: step-time profile, a name or a JSON file; None starts from times measured on this
            machine, where steps can be timed, else from the device's default.
        profile_s: most seconds that a server's first start may spend on measuring step times.
        draft_extend_after: rows of decode steps in a row without a model draft after which EAGLE3's
            draft-extend is put off, to be done for several steps at once; 0 runs it every step.
        gate_poll_s: seconds between two looks whether the gate folder holds another gate; 0 never
            looks.
        trace_dir: folder to record served requests into, or None; the traces hold token ids of what
            users wrote.
        trace_sample: share of requests to record.
        trace_budget_mb: size of the recorded files, MiB; the oldest go first.
        trace_features: record the gate's features of every step too.
        fault_every: testing aid: the suffix cache raises at every n-th step; 0 is off.
        allow_untested_backend: serve with an attention backend that may not know verify widths.
        allow_untested_sglang: start although SGLang is not the version we tested with.
    """

    gate: str | None = None
    gate_device: str = "auto"
    policy: str = "goodput"
    widths: tuple[int, ...] = SERVED_LADDER
    tau: float = 6.0
    suffix_depth: int = 64
    suffix_budget_mb: int = 256
    suffix_factor: float = 4.0
    suffix_min_prob: float = 0.1
    suffix_scope: str = "salt"
    overlap: str = "auto"
    branches: str = "auto"
    profile: str | None = None
    profile_s: float = 10.0
    draft_extend_after: int = 32
    gate_poll_s: float = 1.0
    trace_dir: str | None = None
    trace_sample: float = 1.0
    trace_budget_mb: int = 1024
    trace_features: bool = False
    fault_every: int = 0
    allow_untested_backend: bool = False
    allow_untested_sglang: bool = False

    def __post_init__(self) -> None:
        for name, valid in _CHOICES.items():
            value = getattr(self, name)
            if value not in valid:
                raise ConfigError(f"unknown {name} {value!r}; choose one of {', '.join(valid)}")
        try:
            policy.check_ladder(self.widths)
        except GateError as error:
            raise ConfigError(f"widths: {error}") from None
        if self.widths[-1] > 64:
            raise ConfigError(f"widths must be at most 64, got {list(self.widths)}")
        if self.trace_sample > 1.0:
            raise ConfigError(f"trace_sample must be at most 1, got {self.trace_sample}")
        for name, low in _LEAST.items():
            number = getattr(self, name)
            if number < low:
                raise ConfigError(f"{name} must be at least {low}, got {number}")


_CHOICES = {
    "policy": POLICIES,
    "gate_device": GATE_DEVICES,
    "suffix_scope": SCOPES,
    "overlap": OVERLAPS,
    "branches": BRANCHES,
}

_LEAST: dict[str, float] = {
    "tau": 0.0,
    "suffix_depth": 4,
    "suffix_budget_mb": 1,
    "suffix_factor": 0.1,
    "suffix_min_prob": 0.0,
    "profile_s": 0.1,
    "draft_extend_after": 0,
    "gate_poll_s": 0.0,
    "trace_sample": 0.0,
    "trace_budget_mb": 1,
    "fault_every": 0,
}

# Checked by hand because dataclass annotations are strings here; int is fine where float is asked.
_TYPES: dict[str, tuple[type, ...]] = {
    "gate": (str, type(None)),
    "gate_device": (str,),
    "policy": (str,),
    "tau": (int, float),
    "suffix_depth": (int,),
    "suffix_budget_mb": (int,),
    "suffix_factor": (int, float),
    "suffix_min_prob": (int, float),
    "suffix_scope": (str,),
    "overlap": (str,),
    "branches": (str,),
    "profile": (str, type(None)),
    "profile_s": (int, float),
    "draft_extend_after": (int,),
    "gate_poll_s": (int, float),
    "trace_dir": (str, type(None)),
    "trace_sample": (int, float),
    "trace_budget_mb": (int,),
    "trace_features": (bool,),
    "fault_every": (int,),
    "allow_untested_backend": (bool,),
    "allow_untested_sglang": (bool,),
}


def is_hybrid(algorithm: str | None) -> bool:
    """Whether a ``--speculative-algorithm`` is ours."""
    return (algorithm or "").upper() == NAME


def from_mapping(values: dict[str, Any], origin: str) -> HybridConfig:
    """Build a configuration from plain keys.

    Raises:
        ConfigError: an unknown key or a value of the wrong type; the message names ``origin``.
    """
    valid = [field.name for field in dataclasses.fields(HybridConfig)]
    unknown = sorted(set(values) - set(valid))
    if unknown:
        raise ConfigError(
            f"{origin}: unknown key {unknown[0]!r}; valid keys are {', '.join(valid)}"
        )
    values = dict(values)
    if "widths" in values:
        values["widths"] = _widths(values["widths"], origin)
    for key, value in values.items():
        kinds = _TYPES.get(key)
        wrong_bool = isinstance(value, bool) and kinds is not None and bool not in kinds
        if kinds is not None and (wrong_bool or not isinstance(value, kinds)):
            names = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise ConfigError(f"{origin}: {key} must be {names}, got {value!r}")
    try:
        return HybridConfig(**values)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _widths(value: Any, origin: str) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    raise ConfigError(f"{origin}: widths must be a list of whole numbers, got {value!r}")


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON mapping (JSON is YAML).

    Raises:
        ConfigError: the file is missing, not YAML, or not a mapping.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--hybrid-config {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"--hybrid-config {path}: not valid YAML or JSON ({first})") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError(f"--hybrid-config {path}: must hold a mapping of keys to values")
    return loaded


def from_flags(flags: Mapping[str, str | None], file: str | None) -> HybridConfig:
    """Combine the flags (by their keys in the file) with the file; a flag that is given wins.

    Raises:
        ConfigError: see :func:`read_file` and :func:`from_mapping`.
    """
    values = read_file(Path(file)) if file else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    return from_mapping(values, f"--hybrid-config {file}" if file else "hybridspec flags")


def publish(config: HybridConfig) -> None:
    """Put ``config`` into this process's environment, for itself and its children."""
    os.environ[ENV] = json.dumps(dataclasses.asdict(config))


def current() -> HybridConfig:
    """The configuration of this process; defaults where nothing was published.

    Raises:
        ConfigError: the variable does not hold a valid configuration.
    """
    raw = os.environ.get(ENV)
    if not raw:
        return HybridConfig()
    try:
        values = json.loads(raw)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{ENV} is not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{ENV} must hold a JSON object")
    return from_mapping(values, ENV)
