"""HYBRID's configuration: files, flags, and the way to child processes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hybridspec.adapters.sglang import config, flags


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.ENV, "")


def _write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hybrid.yaml"
    path.write_text(text)
    return str(path)


def test_defaults_without_anything() -> None:
    assert config.current() == config.HybridConfig()


def test_yaml_and_flags_combine_and_flags_win(tmp_path: Path) -> None:
    file = _write(tmp_path, "policy: cache\nwidths: [1, 4, 8]\ntau: 5\n")
    settings = config.from_flags({"gate": "gates/a", "policy": "threshold"}, file)
    assert settings.gate == "gates/a"
    assert settings.policy == "threshold"
    assert settings.widths == (1, 4, 8)
    assert settings.tau == 5


def test_json_is_read_too(tmp_path: Path) -> None:
    file = _write(tmp_path, '{"policy": "none", "suffix_budget_mb": 8}')
    assert config.from_flags({"gate": None}, file).suffix_budget_mb == 8


def test_published_settings_reach_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.HybridConfig(gate="g", policy="score", widths=(1, 2, 64))
    config.publish(settings)
    assert config.current() == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polciy: cache", "unknown key 'polciy'; valid keys are gate, gate_device"),
        ("policy: best", "unknown policy 'best'; choose one of goodput"),
        ("widths: [2, 4]", "must ascend from 1"),
        ("widths: [1, 8, 4]", "must ascend from 1"),
        ("widths: [1, 128]", "at most 64"),
        ("widths: wide", "widths must be a list of whole numbers"),
        ("tau: high", "tau must be int or float"),
        ("suffix_budget_mb: true", "suffix_budget_mb must be int"),
        ("suffix_depth: 0", "suffix_depth must be at least 4"),
        ("- a\n- b", "must hold a mapping"),
        ("a: [", "not valid YAML or JSON"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = _write(tmp_path, text)
    with pytest.raises(config.ConfigError) as caught:
        config.from_flags({"gate": None}, file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="No such file"):
        config.from_flags({"gate": None}, str(tmp_path / "nowhere.yaml"))


def test_broken_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.ENV, "{")
    with pytest.raises(config.ConfigError, match="not valid JSON"):
        config.current()


def _parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--speculative-algorithm", default=None)
    flags.add_cli_args(None, parser)
    return parser.parse_args(argv)


def test_flags_publish_for_children() -> None:
    namespace = _parse("--speculative-algorithm", "hybrid", "--hybrid-policy", "cache")
    assert flags.from_cli_args(lambda args: "made", args=namespace) == "made"
    assert config.current().policy == "cache"


def test_a_missing_head_folder_is_refused_before_anything_reads_it() -> None:
    namespace = _parse("--speculative-algorithm", "HYBRID")
    namespace.speculative_draft_model_path = "/nowhere/head"
    with pytest.raises(SystemExit, match="/nowhere/head does not exist"):
        flags.from_cli_args(lambda args: None, args=namespace)


def test_flags_without_hybrid_are_refused() -> None:
    with pytest.raises(SystemExit, match="need --speculative-algorithm HYBRID"):
        flags.from_cli_args(lambda args: None, args=_parse("--hybrid-policy", "cache"))
