"""The README stays true: its commands exist, with their flags, and so do the names it lists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer.testing
import yaml

from hybridspec.adapters.sglang.config import HybridConfig, from_mapping

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def commands() -> Iterator[list[str]]:
    """Every indented command line, continuation lines joined, comments dropped."""
    joined = README.replace("\\\n", " ")
    for line in re.findall(r"^    (\S.*)$", joined, flags=re.MULTILINE):
        if line.split()[0] in ("make", "hybridspec", "sglang", "pip"):
            yield shlex.split(line, comments=True)


def of(program: str) -> list[list[str]]:
    return [command for command in commands() if command[0] == program]


@pytest.mark.parametrize("command", of("make"), ids=" ".join)
def test_make_targets_and_variables_exist(command: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in command[1:]:
        name, equals, _ = word.partition("=")
        assert re.search(rf"^{name}( \?=|:)", makefile, flags=re.MULTILINE), word
        assert bool(equals) == bool(re.search(rf"^{name} \?=", makefile, flags=re.MULTILINE))


@pytest.mark.parametrize("command", of("hybridspec"), ids=" ".join)
def test_hybridspec_commands_take_these_flags(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", command)
    import importlib

    from hybridspec import cli

    app = importlib.reload(cli).app  # the gate's commands are mounted by what was typed
    words = [word for word in command[1:] if re.fullmatch(r"[a-z][a-z-]*", word)][:2]
    flags = [word for word in command if word.startswith("--")]
    runner = typer.testing.CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    while words:
        result = runner.invoke(app, [*words, "--help"])
        if result.exit_code == 0:
            break
        words.pop()
    assert words, command
    for flag in flags:
        assert flag in result.output


def test_the_settings_shown_are_the_defaults() -> None:
    block = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    assert block
    shown = yaml.safe_load(block.group(1))
    assert from_mapping(shown, "README") == HybridConfig()
    hidden = {"gate", "policy", "fault_every"}  # flags of their own, and a testing aid
    assert set(shown) == {field.name for field in fields(HybridConfig)} - hidden


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_metrics_shown_are_the_ones_there_are() -> None:
    from prometheus_client import CollectorRegistry

    from hybridspec.adapters.sglang.metrics import HybridMetrics

    registry = CollectorRegistry()
    HybridMetrics((1,), "goodput", None, registry)
    there = {metric.name for metric in registry.collect()}
    shown = set(re.findall(r"`(hybridspec_\w+?)(?:_total)?[`{]", README))
    shown.add("hybridspec_suffix_cache_requests")  # written as `_requests` behind its twin
    assert shown == there
