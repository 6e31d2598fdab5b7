"""A watched gate folder: what replaces a gate is taken once it is whole, else the old one stays."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from gate_folders import constant_model, gate_folder
from hybridspec.gate import watch
from hybridspec.gate.store import Gate, load_gate
from hybridspec.gate.watch import GateWatch

OTHER = constant_model((0.8, 0.4, 0.2, 0.1))


class Watched:
    """A folder with a gate, a watch on it that is polled by hand, and what it refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refusals: list[str] = []
        self.watch = GateWatch(folder, load_gate(folder), max_rows=64, refused=self.refusals.append)

    def look(self, times: int = 2) -> Gate | None:
        for _ in range(times):
            self.watch.poll()
        return self.watch.take()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(gate_folder(tmp_path / "gate"))


def test_nothing_changes_while_the_folder_rests(watched: Watched) -> None:
    assert watched.look(5) is None
    assert not watched.refusals


def test_a_replacement_is_taken_once(watched: Watched) -> None:
    gate_folder(watched.folder, OTHER)
    assert watched.look(1) is None, "taken before the folder rested"
    watched.watch.poll()
    gate = watched.watch.take()
    assert gate is not None
    assert watched.watch.take() is None
    assert watched.look(3) is None
    assert not watched.refusals


def test_the_same_gate_copied_again_is_no_replacement(watched: Watched) -> None:
    gate_folder(watched.folder)
    assert watched.look(3) is None
    assert not watched.refusals


def test_a_link_set_anew_is_noticed(tmp_path: Path) -> None:
    first, second = gate_folder(tmp_path / "v1"), gate_folder(tmp_path / "v2", OTHER)
    link = tmp_path / "current"
    link.symlink_to(first)
    watched = Watched(link)
    (tmp_path / "next").symlink_to(second)
    os.replace(tmp_path / "next", link)
    assert watched.look() is not None


def test_files_that_arrive_one_after_the_other_are_waited_for(watched: Watched) -> None:
    complete = gate_folder(watched.folder.parent / "complete", OTHER)
    shutil.copy(complete / "gate.onnx", watched.folder)
    watched.watch.poll()
    shutil.copy(complete / "gate.json", watched.folder)
    assert watched.look() is not None
    assert not watched.refusals


def test_a_refused_gate_is_named_once_and_a_repaired_one_is_taken(watched: Watched) -> None:
    (watched.folder / "gate.onnx").write_bytes(OTHER[: len(OTHER) // 2])
    assert watched.look(5) is None
    assert len(watched.refusals) == 1
    assert "truncated or altered" in watched.refusals[0]
    gate_folder(watched.folder, OTHER)
    assert watched.look() is not None


def test_a_gate_of_another_k_needs_a_restart(watched: Watched) -> None:
    gate_folder(watched.folder, constant_model((0.5, 0.4)), k_of_model=2)
    assert watched.look() is None
    assert "K=2" in watched.refusals[0]
    assert "K=4 is needed" in watched.refusals[0]


def test_a_folder_that_disappears_leaves_the_old_gate(watched: Watched) -> None:
    shutil.rmtree(watched.folder)
    assert watched.look() is None
    assert "no folder" in watched.refusals[0]


def test_a_slow_gate_is_refused(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SLOWEST_S", 0.0)
    gate_folder(watched.folder, OTHER)
    assert watched.look() is None
    assert "64 rows" in watched.refusals[0]


def test_the_thread_looks_by_itself(tmp_path: Path) -> None:
    folder = gate_folder(tmp_path / "gate")
    seen = GateWatch(folder, load_gate(folder), max_rows=64, refused=pytest.fail, poll_s=0.01)
    seen.start()
    gate_folder(folder, OTHER)
    deadline = time.monotonic() + 10.0
    while (gate := seen.take()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    seen.stop()
    assert gate is not None
