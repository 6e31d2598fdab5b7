"""The five commands of docs/gates.md, run as they are written against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_metrics import counters
from engine_servers import OwnGate, generate

pytestmark = pytest.mark.engine

DOC = Path(__file__).resolve().parent.parent / "docs" / "gates.md"


def test_a_gate_is_trained_and_swapped_in_by_five_commands(
    own_gate: OwnGate, prompts: list[list[int]], tmp_path: Path
) -> None:
    block = re.search(r"```bash\n(.*?)```", DOC.read_text(), flags=re.DOTALL)
    assert block
    commands = block.group(1).splitlines()
    assert len(commands) == 5
    server = own_gate.server()
    before = counters(server)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "URL": server.url, "GATE": str(own_gate.gate)}
    for command in commands:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    deadline = time.monotonic() + 30.0
    # An idle server takes a gate when it next decodes.
    while (
        counters(server)[("gate_swaps",)] == before[("gate_swaps",)] and time.monotonic() < deadline
    ):
        generate(server, prompts[:1], 8)
    after = counters(server)
    assert after[("gate_swaps",)] == before[("gate_swaps",)] + 1
    assert after[("gate_fingerprint",)] not in (0.0, before[("gate_fingerprint",)])
