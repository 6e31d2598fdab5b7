"""Starts ``sglang serve`` many times from one process that has imported SGLang once.

A program of its own, because forking wants a process without threads. Reads one JSON list of
starts, ``{"args": [...], "log": path}``, from standard input; prints the list of their exit
statuses. Each start runs in a forked child, whose output goes to its log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

AT_ONCE = 2
TIMEOUT_S = 120
"""A refusal takes about two seconds here; one that hangs, or serves, is killed."""


def main() -> None:
    """Fork a child for every start, a few at a time."""
    starts = json.load(sys.stdin)
    # What a start spends most of its time on. Plugins first: they settle the device.
    from sglang.srt.plugins import load_plugins

    load_plugins()
    import sglang.cli.serve
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server  # noqa: F401

    running: dict[int, int] = {}
    codes = [0] * len(starts)
    for number, start in enumerate(starts):
        if len(running) == AT_ONCE:
            _reap(running, codes)
        child = os.fork()
        if not child:
            _serve(start["args"], Path(start["log"]))
        running[child] = number
    while running:
        _reap(running, codes)
    print(json.dumps(codes))


def _reap(running: dict[int, int], codes: list[int]) -> None:
    child, status = os.wait()
    codes[running.pop(child)] = os.waitstatus_to_exitcode(status)


def _serve(args: list[str], log: Path) -> None:
    """Be ``sglang serve`` until the end."""
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(TIMEOUT_S)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["sglang", "serve", *args]
    from sglang.cli.main import main as sglang

    sys.exit(sglang())


if __name__ == "__main__":
    main()
