"""The locustfile under the real locust, against a small real HTTP server with set delays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_server import CHUNK_S, CHUNKS, FIRST_CHUNK_S

from hybridspec.loadtest.server import Server

SMALL = Path(__file__).parent / "http_server.py"
TOKENS = 3 * CHUNKS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("locust") / "server.log"
    with Server([], log_path=log, command=(sys.executable, str(SMALL))) as running:
        yield running


def locust(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridspec", "loadtest", "locust", "--headless"]
    command += ["--host", server.url, "-u", "2", "-r", "2", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_closed_loop_measures_what_users_feel(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run.json"
    done = locust(server, "-t", "3s", "--summary", str(out), "--csv", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "repeats flatter every cache" in done.stdout
    seen = json.loads(out.read_text())
    assert (seen["failures"], seen["users"]) == (0, 2)
    assert seen["output_tokens"] == TOKENS * seen["requests"] > 0
    assert seen["asked_each"] == pytest.approx(
        seen["requests"] / seen["distinct_prompts"], abs=0.01
    )
    # Milliseconds; a busy machine only adds to them.
    assert seen["ms"]["TTFT"]["p50"] >= 0.9e3 * FIRST_CHUNK_S
    assert seen["ms"]["gap"]["p50"] >= 0.9e3 * CHUNK_S
    assert seen["ms"]["TPOT"]["p50"] == pytest.approx(
        1e3 * CHUNK_S * (CHUNKS - 1) / (TOKENS - 1), rel=0.5, abs=3
    )
    assert seen["server"] is None
    assert "E2E" in (tmp_path / "run_stats.csv").read_text()


def test_every_prompt_once(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    done = locust(
        server, "-t", "30s", "--once", "--api", "completions", "--workload", "tools",
        *("--summary", str(out)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(out.read_text())
    assert seen["asked_each"] == 1
    assert seen["seconds"] < 25


def test_an_open_loop_does_not_wait_for_answers(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    options = ("--qps", "20", "--arrival", "constant")
    done = locust(server, "-t", "4s", *options, "--summary", str(out))
    assert done.returncode == 0, done.stderr
    seen = json.loads(out.read_text())
    # Two users who wait for their answers could ask 4 * 2 / 0.14 = 57 times.
    assert 60 <= seen["requests"] <= 85


def test_several_processes_are_summed_up(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    done = locust(server, "-t", "4s", "--processes", "2", "--summary", str(out))
    assert done.returncode == 0, done.stderr
    assert "(exit code 1)" not in done.stderr
    seen = json.loads(out.read_text())
    # Locust's last table, of percentiles, ends each line with the number of requests.
    line = [line for line in done.stderr.splitlines() if line.startswith("E2E")][-1]
    assert seen["requests"] == int(line.split()[-1]) > 20


def test_failures_and_silence_end_with_one(server: Server, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    record = {"id": "a", "workload": "w", "kind": "k"}
    broken.write_text(json.dumps({**record, "messages": [{"role": "user", "content": "fail"}]}))
    done = locust(server, "-t", "2s", "--workload", str(broken))
    assert done.returncode == 1
    assert "before its end mark" in done.stdout + done.stderr
    done = locust(server, "-t", "1s", "--workload", "nothing-of-that-name")
    assert done.returncode == 1
    assert "give a file, a folder or one of" in done.stderr


def test_a_server_that_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, str(SMALL))
    with Server(["--key", "secret"], log_path=tmp_path / "log", command=command) as running:
        assert locust(running, "-t", "1s", "--api-key", "secret").returncode == 0
        refused = locust(running, "-t", "1s")
        assert refused.returncode == 1
        assert "HTTP 401" in refused.stdout + refused.stderr
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        shown = locust(running, "-t", "1s")
        assert shown.returncode == 0
        assert "secret" not in shown.stdout + shown.stderr
