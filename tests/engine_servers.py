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

import httpx

from hybridspec.demo.lineup import ALGORITHMS, Algorithm, Assets, server_args
from hybridspec.loadtest.client import Client, Prompt
from hybridspec.loadtest.server import Server
from hybridspec.loadtest.workloads import load

DTYPE = "float32"
STREAMS = 16
POLICIES = ("both", "score", "goodput")
# Paused servers keep their memory (about 2 GiB each); older ones are stopped.
MOST_ALIVE = 4
WITHOUT_COMPILER = ("plain", "eagle3", "states", "both")
"""Configurations whose servers find no compiler; the suffix cache's look-ups then go row by row."""

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
        self.cache = log_dir / "cache"
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
        for server in self._servers.values():
            if not server.paused:
                server.pause()
        # Last used is last in order.
        server = self._servers.pop(key) if key in self._servers else self._start(key)
        self._servers[key] = server
        server.resume()
        return server

    def end(self, name: str, *extra: str) -> int | None:
        """Ask a configuration's server to end, as an operator would; its exit status."""
        server = self._servers.pop((name, *extra))
        server.stop()
        return server.exit_code

    def stop(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.stop(grace_s=0)

    def _start(self, key: tuple[str, ...]) -> Server:
        while len(self._servers) >= MOST_ALIVE:
            # What all tests compare with stays.
            oldest = next(key for key in self._servers if key != ("plain",))
            self._servers.pop(oldest).stop(grace_s=0)
        label = "-".join(part.strip("-").replace("/", "_") for part in key)[:80]
        # A machine that serves need not have a compiler, nor what another run has compiled.
        env = {
            "HYBRIDSPEC_CACHE": str(self.cache),
            "SGLANG_JIT_CACHE_DIR": str(self._log_dir / "jit"),
            "TORCHINDUCTOR_CACHE_DIR": str(self._log_dir / "inductor"),
        }
        if key[0] in WITHOUT_COMPILER:
            env["CXX"] = "/nonexistent/c++"
        server = Server(self.args(*key), log_path=self._log_dir / f"{label}.log", env=env)
        server.start()
        server.wait_ready()
        return server


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


def post_all(
    server: Server, bodies: Sequence[Mapping[str, Any]], streams: int = 8
) -> list[httpx.Response]:
    """``/generate``'s reply to every body, in order, ``streams`` at a time."""
    with (
        httpx.Client(base_url=server.url, timeout=300, trust_env=False) as http,
        ThreadPoolExecutor(streams) as pool,
    ):
        return list(pool.map(lambda body: http.post("/generate", json=body), bodies))


def bundled_prompts(server: Server, per_workload: int) -> list[list[int]]:
    """Token ids of the first prompts of the three bundled workloads, rendered by the server."""
    with Client(server.url) as client:
        return [
            client.tokenize(request.messages)
            for name in ("edit", "tools", "chat")
            for request in load(name)[:per_workload]
        ]
