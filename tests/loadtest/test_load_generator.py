"""The load generator is not what is measured. About locust, not about SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hybridspec.loadtest.server import Server

STREAMS, PER_SECOND, CHUNKS = 200, 50.0, 400

pytestmark = pytest.mark.slow


def test_a_core_follows_200_streams_of_50_chunks_a_second(tmp_path: Path) -> None:
    server = Server(
        ["--chunks", str(CHUNKS), "--per-second", str(PER_SECOND)],
        log_path=tmp_path / "server.log",
        command=(sys.executable, str(Path(__file__).with_name("stream_server.py"))),
    )
    out = tmp_path / "run.json"
    workload = tmp_path / "prompts.jsonl"
    prompt: dict[str, object] = {"workload": "prompts", "kind": "chat"}
    prompt |= {"messages": [{"role": "user", "content": "hello"}]}
    workload.write_text(
        "".join(json.dumps({**prompt, "id": str(at)}) + "\n" for at in range(STREAMS))
    )
    with server:
        command = [sys.executable, "-m", "hybridspec", "loadtest", "locust", "--headless", "--once"]
        command += ["--host", server.url, "-u", str(STREAMS), "-r", str(STREAMS)]
        command += ["--workload", str(workload), "--summary", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(out.read_text())
    assert seen["requests"] == STREAMS
    offered = (CHUNKS - 1) / PER_SECOND * 1e3
    # Means: locust rounds percentiles to two digits.
    assert seen["ms"]["E2E"]["mean"] == pytest.approx(offered, rel=0.05)
    assert seen["ms"]["gap"]["mean"] == pytest.approx(1e3 / PER_SECOND, rel=0.05)
