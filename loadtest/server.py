"""Start and stop a real SGLang server as a subprocess, for the demo, the sweeps and the tests.

A server lives in its own process group, so that all of it can be ended, or paused without using any
CPU, at once. This module knows nothing of what the command-line arguments mean.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from types import FrameType, TracebackType

import httpx

# A cold start on two cores takes 20-35 s alone, and minutes on a busy machine.
START_TIMEOUT_S = 300.0
# How long a server gets to end by itself before it is killed.
STOP_TIMEOUT_S = 8.0

_LOG_PREFIX = re.compile(r"^\[[^\]]*\]\s*")
_OUR_LINE = re.compile(r"hybridspec: .")
_ERROR_LINE = re.compile(r"\b[\w.]*(Error|Exception|Refused|Exit): .|\berror: .")

_running: set[Server] = set()


class ServerFailed(RuntimeError):
    """The server ended, or did not answer in time. The message is one line."""


def free_port(low: int = 0, high: int = 0) -> int:
    """A TCP port that is free now: within ``[low, high)`` if given, else any.

    Raises:
        ServerFailed: every port of the range is taken.
    """
    for port in range(low, high) if low else [0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ServerFailed(f"no free port in {low}-{high - 1}")


def last_error_line(log: str) -> str:
    """The line of a server's log that says best why it ended, without its time stamp.

    hybridspec's own refusals win, which are no log records, then the last line that names an error,
    then the last line.
    """
    written = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(written):
        if _OUR_LINE.match(line):
            return line
    lines = [_LOG_PREFIX.sub("", line) for line in written]
    for line in reversed(lines):
        if _ERROR_LINE.search(line):
            return line
    return lines[-1] if lines else "the log is empty"


class Server:
    """One server subprocess: ``start``, ``wait_ready``, then requests to ``url``, then ``stop``.

    As a context manager it starts, waits until ready, and always stops. All servers still running
    are stopped when the interpreter exits.

    Args:
        args: command-line arguments of ``sglang.launch_server``, without host and port.
        log_path: file that receives the server's output; its folder is made.
        port: TCP port; a free one by default.
        env: environment variables to add for the server.
        command: the program in front of ``args``; this interpreter's SGLang by default.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        log_path: Path,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "sglang.launch_server"),
    ) -> None:
        self.args = list(args)
        self.log_path = log_path
        self.port = port
        self._env = dict(env or {})
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def url(self) -> str:
        """Base address of the server, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the server's first process; None before :meth:`start`."""
        return None if self._process is None else self._process.pid

    @property
    def paused(self) -> bool:
        """Whether the server is stopped by :meth:`pause`."""
        return self._paused

    @property
    def exit_code(self) -> int | None:
        """Exit status if the server has ended, else None."""
        return None if self._process is None else self._process.poll()

    def log_text(self) -> str:
        """Everything the server has written so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> None:
        """Start the process and return at once."""
        if self.port is None:
            self.port = free_port()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [*self._command, *self.args, "--host", "127.0.0.1", "--port", str(self.port)]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._env},
                start_new_session=True,
            )
        _running.add(self)
        # Ends the group if this process is killed before it can: the pipe's end of file tells.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; kill -KILL "-$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server answers ``/health``; if it does not, stop it.

        Raises:
            ServerFailed: it ended, or did not answer within ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while not self._healthy():
            if self.exit_code is not None:
                self._fail(f"the server ended with status {self.exit_code}")
            if time.monotonic() > deadline:
                self._fail(f"the server did not answer within {timeout_s:.0f} s")
            time.sleep(0.25)

    def pause(self) -> None:
        """Stop the whole process group in place: it keeps its memory and uses no CPU."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def stop(self, grace_s: float = STOP_TIMEOUT_S) -> None:
        """End the whole process group; safe to call again, and on a server that never started.

        Only the first process is asked: it ends its own children. Were they asked as well, SGLang
        would take their end for a crash and spend five seconds on diagnosing it.

        Args:
            grace_s: how long it may take to end by itself (SGLang takes five seconds) before it is
                killed; 0 kills at once.
        """
        _running.discard(self)
        if self._process is None:
            return
        if grace_s > 0:
            self._process.terminate()
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._guard is not None and self._guard.stdin is not None:
            # Its own kill finds nothing: the group is gone and its number is not yet reused.
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def _healthy(self) -> bool:
        try:
            # SGLang's health check generates one token, and answers after a second at the earliest.
            return httpx.get(f"{self.url}/health", timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    def _fail(self, what: str) -> None:
        self.stop()
        why = last_error_line(self.log_text())
        raise ServerFailed(f"{what}: {why} (log: {self.log_path})")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def __enter__(self) -> Server:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def stop_servers(servers: Iterable[Server]) -> None:
    """Stop several servers at once: an orderly end takes seconds, and they do not depend on it."""
    stopping = [Thread(target=server.stop) for server in servers]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()


def stop_all() -> None:
    """Stop every server started by this process."""
    for server in list(_running):  # no thread can start while the interpreter exits
        server.stop()


def stop_on_sigterm() -> None:
    """Let SIGTERM end this process through ``SystemExit``, so that its servers end with it."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


atexit.register(stop_all)
