"""The load test against a real HYBRID server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine_servers import EngineServers

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_locust_measures_a_hybrid_server(engine: EngineServers, tmp_path: Path, api: str) -> None:
    server = engine("goodput")
    out = tmp_path / "run.json"
    command = [sys.executable, "-m", "hybridspec", "loadtest", "locust", "--headless"]
    command += ["--host", server.url, "-u", "2", "-r", "2", "-t", "8s", "--workload", "edit"]
    command += ["--api", api, "--max-tokens", "24", "--summary", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(out.read_text())
    assert seen["failures"] == 0
    assert 0 < seen["output_tokens"] <= 24 * seen["requests"]
    # Several tokens a piece: counting pieces would have been wrong.
    assert seen["ms"]["TPOT"]["p50"] < seen["ms"]["gap"]["mean"]
    assert seen["server"]["accepted_length"] > 0
    assert sum(seen["server"]["row_share"].values()) == pytest.approx(1.0)
    assert seen["server"]["fallbacks"] == 0
