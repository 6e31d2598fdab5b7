"""Several servers on one machine that take turns: only one of them runs at any time.

The others are paused (SIGSTOP), because an idle SGLang scheduler polls for work and would take the
processor from the one that is measured. This module does not know what the servers serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hybridspec.loadtest.client import Client
from hybridspec.loadtest.server import Server

# Starting is bound by the processor: on two cores, more at a time are no faster.
PARALLEL_STARTS = 2


class Turns:
    """A set of named servers, started together, each paused except within its :meth:`turn`.

    Args:
        args: arguments of every server, by name.
        log_dir: folder for the logs, one file a server.
        ready: called with a server's name when it is up.
    """

    def __init__(
        self,
        args: Mapping[str, Sequence[str]],
        log_dir: Path,
        ready: Callable[[str], None] | None = None,
    ) -> None:
        self._servers = {
            name: Server(each, log_path=log_dir / f"{name}.log") for name, each in args.items()
        }
        self._ready = ready or (lambda name: None)

    def start(self) -> None:
        """Start all servers and leave them paused.

        Raises:
            ServerFailed: one did not start; the others are stopped.
        """
        try:
            with ThreadPoolExecutor(PARALLEL_STARTS) as pool:
                list(pool.map(self._start, self._servers))
        except BaseException:
            self.stop()
            raise

    @contextmanager
    def turn(self, name: str) -> Iterator[Client]:
        """Let one server run for the length of the block."""
        server = self._servers[name]
        server.resume()
        try:
            # A new client each turn: kept connections have timed out while the server was paused.
            with Client(server.url) as client:
                yield client
        finally:
            server.pause()

    def stop(self) -> None:
        """Stop all servers."""
        for server in self._servers.values():
            server.stop()

    def _start(self, name: str) -> None:
        server = self._servers[name]
        server.start()
        server.wait_ready()
        server.pause()
        self._ready(name)

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
