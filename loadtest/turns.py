"""Several servers on one machine that take turns: only one of them runs at any time.

The others are paused (SIGSTOP), because an idle SGLang scheduler polls for work and would take the
processor from the one that is measured. Where memory does not hold them all, the one that has
waited longest is stopped, and started again at its next turn. This module does not know what the
servers serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hybridspec.loadtest.client import Client
from hybridspec.loadtest.server import Server, stop_servers

# Starting is bound by the processor: on two cores, more at a time are no faster.
PARALLEL_STARTS = 2
# Private memory of a paused server of the embedded target, bfloat16: 0.8 GiB for the HTTP process,
# 0.75 for the detokenizer and 1.3 for the scheduler (seen with SGLang 0.5.23).
SERVER_GIB = 3.2
# An hour at 16 streams adds 1.3 GiB to a scheduler, plain or not. A machine that is out of memory
# measures its disk: below this, servers that wait are ended.
LEAST_FREE_GIB = 1.0


def servers_that_fit() -> int:
    """How many servers the free memory holds, at least one."""
    return max(1, int(_free_gib() / SERVER_GIB))


def _free_gib() -> float:
    free = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        free.append(int(text) - int(used.read_text()))
    return min(free) / 2**30


class Turns:
    """A set of named servers, each paused except within its :meth:`turn`.

    Args:
        args: arguments of every server, by name.
        log_dir: folder for the logs, one file a server.
        most_alive: most servers to keep in memory.
        first: name of a server that starts before the others and alone.
        ready: called with a server's name whenever it is up.
        warm_up: called in a server's first turn, before anything else.
        make: makes a server that is not started, from its arguments and log file.
    """

    def __init__(
        self,
        args: Mapping[str, Sequence[str]],
        log_dir: Path,
        *,
        most_alive: int,
        first: str | None = None,
        ready: Callable[[str], None] = lambda name: None,
        warm_up: Callable[[Client], None] = lambda client: None,
        make: Callable[[Sequence[str], Path], Server] = lambda args, log: Server(
            args, log_path=log
        ),
    ) -> None:
        self._args = dict(args)
        self._first = first
        self._log_dir = log_dir
        self._most_alive = most_alive
        self._ready = ready
        self._warm_up = warm_up
        self._make = make
        self._alive: dict[str, Server] = {}
        self._warm: set[str] = set()

    @property
    def all_alive(self) -> bool:
        """Whether every server stays in memory, so that changing turns costs nothing."""
        return len(self._args) <= self._most_alive

    def start(self) -> None:
        """Start as many servers as fit, and leave them paused.

        Raises:
            ServerFailed: one did not start; the others are stopped.
        """
        names = list(self._args)[: self._most_alive]
        with ThreadPoolExecutor(PARALLEL_STARTS) as pool:
            try:
                if self._first in names:
                    self._start(self._first)
                list(pool.map(self._start, [name for name in names if name != self._first]))
            except BaseException:
                # Leaving the pool waits for starts under way: end them, so that they fail at once.
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    @contextmanager
    def turn(self, name: str) -> Iterator[Client]:
        """Let one server run for the length of the block.

        Raises:
            ServerFailed: it had to be started again and did not.
        """
        while name not in self._alive and len(self._alive) >= self._most_alive:
            self._end(next(iter(self._alive)))
        if name in self._alive and self._alive[name].exit_code is not None:
            self._end(name)  # it died in its last turn
        if name not in self._alive:
            self._start(name)
        server = self._alive[name] = self._alive.pop(name)  # Last used is last in order.
        while len(self._alive) > 1 and _free_gib() < LEAST_FREE_GIB:
            self._end(next(iter(self._alive)))
        server.resume()
        try:
            # A new client each turn: kept connections have timed out while the server was paused.
            with Client(server.url) as client:
                if name not in self._warm:
                    self._warm_up(client)
                    self._warm.add(name)
                yield client
        finally:
            server.pause()

    def stop(self) -> None:
        """Stop all servers."""
        stop_servers(self._alive.values())
        self._alive.clear()
        self._warm.clear()

    def _start(self, name: str) -> None:
        server = self._alive[name] = self._make(self._args[name], self._log_dir / f"{name}.log")
        server.start()
        server.wait_ready()
        server.pause()
        self._ready(name)

    def _end(self, name: str) -> None:
        self._alive.pop(name).stop()
        self._warm.discard(name)

    def __enter__(self) -> Turns:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
