"""Starting, pausing and ending a server process, against a small real HTTP server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridspec.loadtest.client import Client
from hybridspec.loadtest.server import Server, ServerFailed, free_port, last_error_line

COMMAND = (sys.executable, str(Path(__file__).parent / "http_server.py"))


def make(tmp_path: Path, args: Sequence[str] = ()) -> Server:
    return Server(args, log_path=tmp_path / "logs" / "server.log", command=COMMAND)


def test_starts_answers_and_ends(tmp_path: Path) -> None:
    with make(tmp_path) as server, Client(server.url) as client:
        assert client.tokenize([{"role": "user", "content": "ab"}]) == [97, 98]
        assert server.exit_code is None
    assert server.exit_code is not None
    server.stop()


def test_ends_when_the_block_raises(tmp_path: Path) -> None:
    server = make(tmp_path)
    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError
    assert server.exit_code is not None


def test_pause_stops_the_process_and_resume_continues_it(tmp_path: Path) -> None:
    def state(server: Server) -> str:
        process = server._process
        assert process is not None
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    with make(tmp_path) as server:
        server.pause()
        time.sleep(0.05)
        assert state(server) == "T"
        assert server.paused
        server.resume()
        with Client(server.url) as client:
            client.flush_cache()
        assert state(server) != "T"
        server.pause()  # stop() must end a paused server too.
    assert server.exit_code is not None


def test_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal; from pathlib import Path;"
        "from hybridspec.loadtest.server import Server;"
        f"s = Server([], log_path=Path({str(tmp_path / 'log')!r}), command={COMMAND!r});"
        "s.start(); s.wait_ready(); print(s._process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(owner.stdout)
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_failure_is_one_line_with_the_reason(tmp_path: Path) -> None:
    log = "loading|[2026-01-01 00:00:00] ValueError: no such model|Killed"
    with pytest.raises(ServerFailed) as failure, make(tmp_path, ["--fail", log]):
        pass
    message = str(failure.value)
    assert "status 3" in message
    assert "ValueError: no such model" in message
    assert "server.log" in message
    assert "\n" not in message


def test_a_server_that_hangs_is_ended(tmp_path: Path) -> None:
    server = make(tmp_path, ["--hang"])
    server.start()
    with pytest.raises(ServerFailed, match="did not answer within 1 s"):
        server.wait_ready(timeout_s=1)
    assert server.exit_code is not None


def test_a_program_that_cannot_run_fails(tmp_path: Path) -> None:
    server = Server([], log_path=tmp_path / "log", command=[sys.executable, "missing.py"])
    with pytest.raises(ServerFailed, match="No such file"), server:
        pass


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "the log is empty"),
        ("one\ntwo\n\n", "two"),
        ("TypeError: bad\nhybridspec: no gate at /x\nTraceback", "hybridspec: no gate at /x"),
        ("[2026-01-01 00:00:00] hybridspec: a record\nValueError: bad", "ValueError: bad"),
        ('  File "x", line 1\nOSError: disk full\nbye', "OSError: disk full"),
        ("launch_server.py: error: unrecognized arguments: --x", None),
    ],
)
def test_last_error_line(log: str, line: str | None) -> None:
    assert last_error_line(log) == (line or log)


def test_free_port_in_a_range() -> None:
    port = free_port(20000 + os.getpid() % 10000, 40000)
    assert 20000 <= port < 40000
