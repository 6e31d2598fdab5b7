"""Taking turns, against a small real HTTP server in place of SGLang."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridspec.loadtest.client import Client
from hybridspec.loadtest.server import Server, ServerFailed
from hybridspec.loadtest.turns import Turns, servers_that_fit

HTTP_SERVER = Path(__file__).parents[1] / "loadtest" / "http_server.py"


def small_server(args: Sequence[str], log: Path) -> Server:
    """The same process control around a server that starts at once."""
    return Server(args, log_path=log, command=(sys.executable, str(HTTP_SERVER)))


def test_only_one_runs_and_each_is_warmed_once(tmp_path: Path) -> None:
    up: list[str] = []
    warmed: list[Client] = []
    args: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    with Turns(
        args, tmp_path, most_alive=3, ready=up.append, warm_up=warmed.append, make=small_server
    ) as turns:
        assert sorted(up) == ["a", "b", "c"]
        assert turns.all_alive
        for name in ("a", "b", "a", "c"):
            with turns.turn(name) as client:
                client.generate("x", max_tokens=1)
                running = [key for key, server in turns._alive.items() if not server.paused]
                assert running == [name]
    assert len(warmed) == 3
    assert sorted(up) == ["a", "b", "c"]


def test_with_little_memory_servers_start_again(tmp_path: Path) -> None:
    up: list[str] = []
    warmed: list[Client] = []
    args: dict[str, list[str]] = {"a": [], "b": []}
    with Turns(
        args, tmp_path, most_alive=1, ready=up.append, warm_up=warmed.append, make=small_server
    ) as turns:
        assert not turns.all_alive
        for name in ("a", "b", "b", "a"):
            with turns.turn(name) as client:
                client.generate("x", max_tokens=1)
    assert up == ["a", "b", "a"]
    assert len(warmed) == 3


def test_a_server_that_fails_stops_the_others(tmp_path: Path) -> None:
    turns = Turns(
        {"a": [], "b": ["--fail", "OSError: no"]}, tmp_path, most_alive=2, make=small_server
    )
    with pytest.raises(ServerFailed, match="OSError: no"):
        turns.start()
    assert not turns._alive


def test_at_least_one_fits() -> None:
    assert servers_that_fit() >= 1


def test_servers_that_wait_end_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([0.5, 0.5, *[8.0] * 9])
    args: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    with Turns(args, tmp_path, most_alive=3, make=small_server) as turns:
        monkeypatch.setattr("hybridspec.loadtest.turns._free_gib", lambda: next(free))
        with turns.turn("b"):
            assert list(turns._alive) == ["b"]
        with turns.turn("a") as client:
            client.generate("x", max_tokens=1)
            assert sorted(turns._alive) == ["a", "b"]
