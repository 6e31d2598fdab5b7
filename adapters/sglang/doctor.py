"""``hybridspec doctor``: what is installed, what HYBRID relies on, and whether it would start."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from hybridspec.adapters import eagle3_head
from hybridspec.adapters.sglang import compat
from hybridspec.gate import store
from hybridspec.gate.errors import GateError


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing. ``ok`` False means that HYBRID would not start."""

    name: str
    ok: bool
    detail: str


def run(gate: Path | None, head: Path | None, target: Path | None, as_json: bool) -> int:
    """Print every finding; returns 0 if HYBRID would start with these files, else 1."""
    findings = list(examine(gate, head, target))
    if as_json:
        ok = all(finding.ok for finding in findings)
        print(json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]}))
        return 0 if ok else 1
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        mark = "[green]ok  [/green]" if finding.ok else "[red]FAIL[/red]"
        console.print(f"{mark} {finding.name}: {escape(finding.detail)}")
    return 0 if all(finding.ok for finding in findings) else 1


def examine(gate: Path | None, head: Path | None, target: Path | None) -> Iterator[Finding]:
    """All findings, in the order in which a server start would meet them."""
    yield _version()
    yield from _hooks()
    yield from _kernels()
    yield _suffix()
    yield from _gate(gate)
    yield from _head(head, target)


def _version() -> Finding:
    problem = compat.version_problem(allow_untested=False)
    return Finding("sglang", problem is None, problem or f"{compat.installed_version()} (tested)")


def _hooks() -> Iterator[Finding]:
    from hybridspec.adapters.sglang import cpu

    if compat.installed_version() is None:
        return
    if cpu.needed():
        cpu.install()
    for hook in compat.HOOKS:
        problem = hook.problem()
        uses = f" ({', '.join(hook.uses)})" if hook.uses else ""
        yield Finding("hook", problem is None, problem or f"{hook.path}{uses}")
    entry_points = importlib.metadata.entry_points(group="sglang.srt.plugins")
    found = any(entry.name == "hybridspec" for entry in entry_points)
    yield Finding(
        "plugin",
        found,
        "entry point sglang.srt.plugins: hybridspec"
        if found
        else "the entry point is missing; reinstall hybridspec with pip",
    )


def _kernels() -> Iterator[Finding]:
    from hybridspec.adapters.sglang import cpu

    if not cpu.needed():
        yield Finding("kernels", True, "SGLang's own")
        return
    for line in cpu.describe():
        yield Finding("kernels", True, f"portable CPU runtime: {line}")


def _suffix() -> Finding:
    try:
        import hybridspec.adapters.suffix  # noqa: F401  (its import loads the compiled library)
    except ImportError as error:
        return Finding(
            "suffix cache", False, f"{error}; pip install 'hybridspec[suffix]' (arctic-inference)"
        )
    from hybridspec.adapters.suffix.front import FrontUnavailable, built

    version = importlib.metadata.version("arctic-inference")
    try:
        look_ups = f"compiled look-ups in {built()}"
    except FrontUnavailable as reason:
        look_ups = f"look-ups one by one ({reason})"
    return Finding("suffix cache", True, f"arctic-inference {version}, {look_ups}")


def _gate(folder: Path | None) -> Iterator[Finding]:
    try:
        import onnxruntime
    except ImportError as error:
        # A server without a gate starts without onnxruntime.
        advice = "pip install 'hybridspec[gate]'"
        yield Finding("onnxruntime", folder is None, f"not usable ({error}); {advice}")
        return
    version = onnxruntime.__version__
    if folder is None:
        yield Finding("onnxruntime", True, version)
        yield Finding("gate", True, "none given; HYBRID decides by measured acceptance")
        return
    try:
        gate = store.load_gate(folder, provider="auto")
    except GateError as error:
        yield Finding("gate", False, str(error))
        return
    yield Finding("onnxruntime", True, f"{version}, {gate.provider}")
    yield Finding("gate", True, f"{folder}: K={gate.k}, {len(gate.features)} features")


def _head(head: Path | None, target: Path | None) -> Iterator[Finding]:
    if head is None or target is None:
        yield Finding("head", True, "not checked; pass --head and --target to check one")
        return
    problems = eagle3_head.check_head(head, target)
    for problem in problems:
        yield Finding("head", problem.startswith(eagle3_head.WARNING), problem)
    if not problems:
        yield Finding("head", True, f"{head} fits {target}")
