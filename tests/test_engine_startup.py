"""A HYBRID server that cannot serve says why in one line and ends; nothing hangs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from engine_refusals import REFUSALS, Maker, Outcome, start
from hybridspec.demo.lineup import Assets
from hybridspec.demo.target import ensure_target

pytestmark = pytest.mark.engine

AT_ONCE = 3
"""Refusals started together: more than two cores can use gains nothing."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[Maker, Future[Outcome]]:
    target = ensure_target()
    assets = Assets.bundled(target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {
            make: pool.submit(start, target, make(assets, tmp_path_factory.mktemp("case")))
            for make in REFUSALS
        }


@pytest.mark.parametrize("make", REFUSALS, ids=lambda make: make.__name__)
def test_refusal_is_one_clear_line(outcomes: dict[Maker, Future[Outcome]], make: Maker) -> None:
    outcome = outcomes[make].result()
    assert outcome.code != 0
    assert outcome.last_line.startswith("hybridspec: ")
    assert REFUSALS[make] in outcome.last_line
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
