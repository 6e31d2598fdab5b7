"""The command: fast help, and refusals of one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from hybridspec.cli import app; app()", *args],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "args", [["--help"], ["demo", "--help"], ["traces", "collect", "--help"], ["doctor", "--help"]]
)
def test_help(args: list[str]) -> None:
    done = run(*args)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'sglang', 'numpy', 'onnxruntime', 'httpx', 'rich.progress'}"
    code = f"import hybridspec.cli, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_bad_workload_is_one_line_and_status_one(tmp_path: Path) -> None:
    out = str(tmp_path / "traces")
    done = run(
        "traces", "collect", "--url", "http://127.0.0.1:9", "--workload", "nope", "--out", out
    )
    assert done.returncode == 1
    assert done.stderr.startswith("hybridspec: no workload 'nope'")
    assert done.stderr.count("\n") == 1


def test_an_unknown_algorithm_is_one_line() -> None:
    done = run("demo", "run", "--algorithm", "nope")
    assert done.returncode == 1
    assert done.stderr.startswith("hybridspec: unknown algorithm 'nope'")
