"""Gates swapped under load: every request is served, with plain decoding's token ids."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest

from engine_metrics import counters
from engine_servers import OwnGate, generate
from gate_folders import constant_model
from hybridspec.gate.manifest import Manifest
from hybridspec.loadtest.server import Server

pytestmark = pytest.mark.engine

# The suite swaps some dozens of times; set the variable for more.
SWAPS = int(os.environ.get("HYBRIDSPEC_TEST_SWAPS", "30"))
STREAMS = 8
TOKENS = 24
# What a scheduler may gain over all swaps after the first few: noise of its allocator.
MOST_GROWTH = 96 << 20


def two_gates(folder: Path, bundled: Path) -> list[Path]:
    """The demo's gate, and one of the same features that believes in every draft."""
    made = [Path(shutil.copytree(bundled, folder / name)) for name in ("bundled", "trusting")]
    manifest = Manifest.read(bundled)
    curve = tuple(0.95**position for position in range(1, manifest.k + 1))
    model = constant_model(curve, features=len(manifest.features))
    (made[1] / "gate.onnx").write_bytes(model)
    Manifest(manifest.features, manifest.k, hashlib.sha256(model).hexdigest()).write(made[1])
    return made


def memory(server: Server) -> int:
    """Resident bytes of the scheduler, which holds the gate."""
    assert server.pid is not None
    family = psutil.Process(server.pid).children(recursive=True)
    return max(int(process.memory_info().rss) for process in family)


def wait_for_swaps(server: Server, wanted: float) -> None:
    deadline = time.monotonic() + 60.0
    while counters(server)[("gate_swaps",)] < wanted:
        assert time.monotonic() < deadline, f"swap {wanted:.0f} did not happen"
        time.sleep(0.1)


def test_swaps_under_load_change_no_text(
    own_gate: OwnGate,
    prompts: list[list[int]],
    plain_text: list[list[int]],
    tmp_path: Path,
) -> None:
    gates = two_gates(tmp_path, own_gate.bundled)
    server, served = own_gate.server(), own_gate.gate
    before = counters(server)[("gate_swaps",)]
    wrong: list[object] = []
    enough = threading.Event()

    def keep_asking() -> None:
        turn = 0
        while not enough.is_set():
            chosen = [(turn * STREAMS + i) % len(prompts) for i in range(STREAMS)]
            try:
                seen = generate(server, [prompts[i] for i in chosen], TOKENS, concurrency=STREAMS)
                wrong.extend(
                    i for i, ids in zip(chosen, seen, strict=True) if ids != plain_text[i][:TOKENS]
                )
            except Exception as error:
                wrong.append(error)
                return
            turn += 1

    load = threading.Thread(target=keep_asking)
    load.start()
    settled = 0
    try:
        for swap in range(1, SWAPS + 1):
            shutil.copytree(gates[swap % 2], served, dirs_exist_ok=True)
            wait_for_swaps(server, before + swap)
            if swap == min(10, SWAPS - 1):
                settled = memory(server)
        growth = memory(server) - settled
    finally:
        enough.set()
        load.join()
    assert not wrong
    assert growth < MOST_GROWTH
    # Looking so often, the server may have caught a copy half done: only what follows counts.
    refused, said = counters(server)[("gate_refusals",)], _refusals(server)
    (served / "gate.onnx").write_bytes(b"hello")
    deadline = time.monotonic() + 30.0
    while counters(server)[("gate_refusals",)] == refused and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    assert counters(server)[("gate_refusals",)] == refused + 1
    assert _refusals(server) == said + 1
    assert generate(server, prompts[:2], TOKENS) == [ids[:TOKENS] for ids in plain_text[:2]]


def _refusals(server: Server) -> int:
    return server.log_text().count("hybridspec: the old gate stays")
