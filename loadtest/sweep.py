"""Runs algorithms x workloads x concurrency, algorithms in turn on the same prompts, resumably.

A block is one algorithm answering the prompts of one workload at one concurrency in one round; it
is one run of locust. Every block's outcome is a line of ``blocks.jsonl``, so a stopped sweep goes
on where it was. This module starts no servers and makes no report.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from hybridspec.loadtest.client import Client, RequestFailed
from hybridspec.loadtest.rounds import pick, schedule
from hybridspec.loadtest.server import ServerFailed
from hybridspec.loadtest.workloads import Request

BLOCKS = "blocks.jsonl"


class SweepError(RuntimeError):
    """The sweep cannot run. The message is one line."""


class Contestants(Protocol):
    """Servers by name, of which one runs at a time."""

    def turn(self, name: str) -> AbstractContextManager[Client]:
        """Let one server run for the length of the block."""
        ...


class GivenServers:
    """Servers that somebody else runs, each on a machine of its own."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)

    @contextmanager
    def turn(self, name: str) -> Iterator[Client]:
        """A client of the server called ``name``."""
        with Client(self._urls[name]) as client:
            yield client


@dataclass(frozen=True, slots=True)
class Block:
    """Which algorithm answers what, with how many users."""

    round: int
    users: int
    workload: str
    algorithm: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What a sweep compares. A sweep can only be continued with the same.

    Attributes:
        algorithms: names of the servers.
        workloads: labels of the workloads.
        users: concurrencies.
        rounds: each on prompts of its own, as far as a workload has enough.
        prompts: least prompts of a block; it has one for each user at least.
        max_tokens: most tokens of an answer; None leaves it to the workload.
        warm: whether a block's prompts are asked once, unmeasured, before; otherwise every block
            starts with empty caches.
        timeout_s: most seconds of one block.
    """

    algorithms: tuple[str, ...]
    workloads: tuple[str, ...]
    users: tuple[int, ...]
    rounds: int = 3
    prompts: int = 4
    max_tokens: int | None = None
    warm: bool = False
    timeout_s: float = 600.0

    def blocks(self, *, by_algorithm: bool = False) -> list[Block]:
        """All blocks in order, see :func:`schedule`."""
        cells = [(users, workload) for users in self.users for workload in self.workloads]
        return [
            Block(round_, users, workload, name)
            for round_ in range(self.rounds)
            for (users, workload), name in schedule(
                cells, self.algorithms, round_, by_algorithm=by_algorithm
            )
        ]


class Sweep:
    """One sweep in one folder."""

    def __init__(
        self, out: Path, settings: Settings, facts: Mapping[str, Any], *, by_algorithm: bool = False
    ) -> None:
        """Begin a sweep in ``out``, or go on with the one that is there.

        Args:
            out: folder; made if missing.
            settings: what is compared.
            facts: what else a reader should know, such as the machine; kept with the settings.
            by_algorithm: see :meth:`Settings.blocks`.

        Raises:
            SweepError: ``out`` holds a sweep of other settings, or something else.
        """
        self._path, self._settings = out / BLOCKS, settings
        out.mkdir(parents=True, exist_ok=True)
        header = {"settings": json.loads(json.dumps(asdict(settings)))}
        done: set[Block] = set()
        if self._path.is_file():
            known, lines = read(out)
            if known["settings"] != header["settings"]:
                raise SweepError(
                    f"{out} holds a sweep with other settings; choose another --out, or remove it"
                )
            done = {_block(line) for line in lines if "failed" not in line}
        else:
            self._path.write_text(json.dumps({**header, "facts": dict(facts)}) + "\n")
        self.waiting = [b for b in settings.blocks(by_algorithm=by_algorithm) if b not in done]

    def run(
        self,
        contestants: Contestants,
        prompts: Mapping[str, Sequence[Request]],
        done: Callable[[Block, dict[str, Any]], None],
    ) -> None:
        """Run what is waiting.

        Args:
            contestants: the servers.
            prompts: of every workload.
            done: told every block and its outcome: locust's summary, or ``failed`` with a reason.

        Raises:
            SweepError: a workload has too few prompts for the most users.
        """
        most = max(self._settings.prompts, *self._settings.users)
        for name in self._settings.workloads:
            if len(prompts[name]) < most:
                raise SweepError(
                    f"workload {name} has {len(prompts[name])} prompts; {most} users or prompts a "
                    "block need as many, or repeats would flatter every cache"
                )
        for block in self.waiting:
            size = max(self._settings.prompts, block.users)
            chosen = pick(prompts[block.workload], block.round, size)
            began = time.time()
            try:
                with contestants.turn(block.algorithm) as client:
                    outcome = self._measure(client, block, chosen)
            except (ServerFailed, RequestFailed, SweepError) as error:
                outcome = {"failed": str(error)}
            line = {**outcome, **asdict(block), "began": round(began, 1)}
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            done(block, outcome)

    def _measure(self, client: Client, block: Block, chosen: Sequence[Request]) -> dict[str, Any]:
        flushed = True
        try:
            client.flush_cache()
        except RequestFailed:
            flushed = False  # not every server can; the outcome says so
        with tempfile.TemporaryDirectory() as folder:
            workload = Path(folder) / "block.jsonl"
            workload.write_text("".join(json.dumps(asdict(each)) + "\n" for each in chosen))
            if self._settings.warm:
                self._locust(client.url, workload, block.users)
            return {"flushed": flushed, **self._locust(client.url, workload, block.users)}

    def _locust(self, url: str, workload: Path, users: int) -> dict[str, Any]:
        summary = workload.with_suffix(".json")
        summary.unlink(missing_ok=True)
        command = [sys.executable, "-m", "hybridspec", "loadtest", "locust", "--headless", "--once"]
        command += ["--host", url, "-u", str(users), "-r", str(users), "--workload", str(workload)]
        command += ["--max-tokens", str(self._settings.max_tokens or 0), "--summary", str(summary)]
        try:
            ended = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=self._settings.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SweepError(f"not done in {self._settings.timeout_s:.0f} s") from None
        if ended.returncode != 0 or not summary.is_file():
            raise SweepError(_reason(ended.stdout + ended.stderr))
        found: dict[str, Any] = json.loads(summary.read_text())
        return found


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header (``settings``, ``facts``) and the outcomes of a sweep.

    Raises:
        SweepError: ``out`` holds none, or a damaged one.
    """
    path = out / BLOCKS
    try:
        header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
        if "settings" not in header:
            raise ValueError("its first line has no settings")
        for line in lines:
            _block(line)
    except FileNotFoundError:
        raise SweepError(f"no sweep in {out}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise SweepError(f"{path} cannot be used: {error}") from None
    return header, lines


def _block(line: Mapping[str, Any]) -> Block:
    return Block(line["round"], line["users"], line["workload"], line["algorithm"])


def _reason(output: str) -> str:
    """The line of locust's output that says best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in ("StreamError(", "hybridspec:", "Error(", "Timeout("):
        for line in lines:
            if mark in line:
                return line[:300]
    return lines[-1][:300] if lines else "locust said nothing"
