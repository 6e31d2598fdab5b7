"""Real SGLang servers for the engine tests: one per configuration, started on first use and shared.

Two cores carry one busy server, so all but the one in use are paused. The tests on top of this know
configurations by name and never build command lines themselves, except to add flags.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hybridspec.demo.lineup import ALGORITHMS, Algorithm, Assets, server_args
from hybridspec.loadtest.client import Client, Prompt
from hybridspec.loadtest.server import Server
from hybridspec.loadtest.workloads import load

DTYPE = "float32"
STREAMS = 16
POLICIES = ("none", "model", "cache", "score", "threshold", "goodput")
# Paused servers keep their memory (about 2 GiB each); older ones are stopped.
MOST_ALIVE = 4

CONFIGURATIONS: dict[str, Algorithm] = {
    **{name: ALGORITHMS[name] for name in ("plain", "ngram", "eagle3")},
    **{
        policy: Algorithm(
            ("--speculative-algorithm", "HYBRID", "--hybrid-policy", policy), head=True, gate=True
        )
        for policy in POLICIES
    },
    # EAGLE3 names the capture convention, and no draft is loaded.
    "states": Algorithm(("--speculative-algorithm", "EAGLE3", "--enable-return-aux-hidden-states")),
    "gateless": Algorithm(("--speculative-algorithm", "HYBRID"), head=True),
}


class EngineServers:
    """Servers by configuration and extra flags; calling it gives a running, ready one."""

    def __init__(self, assets: Assets, log_dir: Path) -> None:
        self._assets = assets
        self._log_dir = log_dir
        self._servers: dict[tuple[str, ...], Server] = {}

    def args(self, name: str, *extra: str) -> list[str]:
        """Command-line arguments of a configuration, for tests that start a server themselves."""
        args = server_args(CONFIGURATIONS[name], self._assets, dtype=DTYPE, streams=STREAMS)
        return [*args, *extra]

    def __call__(self, name: str, *extra: str) -> Server:
        """The server of a configuration, running; every other one is paused.

        Args:
            name: a key of :data:`CONFIGURATIONS`.
            extra: more arguments of ``sglang.launch_server``; they make it another server.
        """
        key = (name, *extra)
        self.start(key)
        server = self._servers[key] = self._servers.pop(key)  # Last used is last in order.
        server.resume()
        return server

    def start(self, *keys: tuple[str, ...]) -> None:
        """Start those of some configurations that are not there, all at once, and leave every
        server paused. One server alone keeps half of two cores busy while it starts."""
        for server in self._servers.values():
            if not server.paused:
                server.pause()
        missing = [key for key in keys if key not in self._servers]
        while self._servers and len(self._servers) + len(missing) > MOST_ALIVE:
            self._servers.pop(next(iter(self._servers))).stop(grace_s=0)
        starting = {key: self._make(key) for key in missing}
        self._servers |= starting
        for server in starting.values():
            server.start()
        with ThreadPoolExecutor(max(1, len(starting))) as pool:
            list(pool.map(_wait_and_pause, starting.values()))

    def stop(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.stop(grace_s=0)

    def _make(self, key: tuple[str, ...]) -> Server:
        label = "-".join(part.strip("-").replace("/", "_") for part in key)[:80]
        # A machine that serves need not have a compiler, nor what another run has compiled. Only
        # SGLang's own NGRAM needs one.
        env = {
            "SGLANG_JIT_CACHE_DIR": str(self._log_dir / "jit"),
            "TORCHINDUCTOR_CACHE_DIR": str(self._log_dir / "inductor"),
        }
        if not CONFIGURATIONS[key[0]].compiler:
            env["CXX"] = "/nonexistent/c++"
        return Server(self.args(*key), log_path=self._log_dir / f"{label}.log", env=env)


def _wait_and_pause(server: Server) -> None:
    server.wait_ready()
    server.pause()


class OwnGate:
    """A server whose gate folder the tests may change, which records traces with features."""

    def __init__(self, engine: EngineServers, folder: Path) -> None:
        bundled = Assets.bundled(folder).gate
        assert bundled is not None
        self.bundled = bundled
        self.gate = Path(shutil.copytree(bundled, folder / "gate"))
        self.traces = folder / "traces"
        config = folder / "hybrid.json"
        config.write_text(json.dumps({"gate_poll_s": 0.02, "trace_features": True}))
        self._engine = engine
        self._args = (
            *("--hybrid-gate", str(self.gate)),
            *("--hybrid-trace-dir", str(self.traces)),
            *("--hybrid-config", str(config)),
        )

    def server(self) -> Server:
        """The server, running; every other one is paused."""
        return self._engine("goodput", *self._args)


def generate(
    server: Server,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 48,
    concurrency: int = 1,
    sampling_params: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Output token ids of every prompt (text or token ids), in order; greedy by default."""
    with Client(server.url) as client:
        run = client.run(
            prompts, max_tokens=max_new_tokens, streams=concurrency, sampling=sampling_params
        )
    return [answer.output_ids for answer in run.answers]


def bundled_prompts(server: Server, per_workload: int) -> list[list[int]]:
    """Token ids of the first prompts of the three bundled workloads, rendered by the server."""
    with Client(server.url) as client:
        return [
            client.tokenize(request.messages)
            for name in ("edit", "tools", "chat")
            for request in load(name)[:per_workload]
        ]
