"""A HYBRID server that cannot serve says why in one line and ends; nothing hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine_refusals import NAMES, Outcome, all_cases, start_all
from hybridspec.demo.lineup import Assets
from hybridspec.demo.target import ensure_target

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, str]]:
    """How every bad start ended, and what it should have said."""
    target = ensure_target()
    folder = tmp_path_factory.mktemp("refusals")
    cases = all_cases(Assets.bundled(target), lambda: tmp_path_factory.mktemp("case"))
    numbered = {str(number): case for number, (case, _) in enumerate(cases.values())}
    ended = start_all(target, numbered, folder)
    return {
        name: (ended[str(number)], says) for number, (name, (_, says)) in enumerate(cases.items())
    }


@pytest.mark.parametrize("name", NAMES)
def test_refusal_is_one_clear_line(outcomes: dict[str, tuple[Outcome, str]], name: str) -> None:
    outcome, says = outcomes[name]
    assert outcome.code > 0  # a killed one hung, or served
    assert outcome.last_line.startswith("hybridspec: ")
    assert says in outcome.last_line
    assert "Traceback" not in outcome.output


def test_flags_are_in_the_servers_help() -> None:
    shown = subprocess.run(
        # `sglang serve --help` prints its help before it loads any plugin.
        [sys.executable, "-m", "sglang.launch_server", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for flag in ("--hybrid-gate", "--hybrid-gate-device", "--hybrid-policy", "--hybrid-config"):
        assert flag in shown


def test_doctor_passes_here_and_fails_on_a_broken_gate(tmp_path: Path) -> None:
    target = ensure_target()
    assets = Assets.bundled(target)
    command = [sys.executable, "-m", "hybridspec", "doctor", "--target", str(target)]
    command += ["--head", str(assets.head)]
    good = subprocess.run(
        [*command, "--gate", str(assets.gate)], capture_output=True, text=True, check=False
    )
    assert good.returncode == 0, good.stdout
    assert "FAIL" not in good.stdout
    assert "0.5.23 (tested)" in good.stdout
    bad = subprocess.run(
        [*command, "--gate", str(tmp_path / "nowhere")], capture_output=True, text=True, check=False
    )
    assert bad.returncode == 1
    assert "no folder at" in bad.stdout
