"""Fixtures shared by all tests. Fast tests use none of the engine's."""

from __future__ import annotations

import os
from collections.abc import Iterator

# OpenMP threads that wait by spinning starve each other where other processes share the cores: a
# test of eight seconds was seen to take ten minutes. Read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import pytest

from engine_servers import EngineServers, OwnGate, bundled_prompts, generate

# Files whose tests share servers, in the order in which the fewest servers have to be started.
ENGINE_ORDER = (
    # Starts servers of its own: first, while the memory is free.
    "test_gpu_check",
    "test_engine_hidden_states",
    "test_engine_head",
    "test_engine_cpu",
    "test_engine_lossless",
    "test_engine_batching",
    "test_engine_sampling",
    "test_engine_tenancy",
    "test_engine_answers",
    "test_engine_mixes",
    "test_engine_loadtest",
    "test_engine_overlap",
    "test_engine_scheduling",
    # Traces are replayed whole, so they come before gates are swapped on the same server.
    "test_engine_traces",
    "test_engine_gates_doc",
    "test_engine_gate_swap",
)
PLAIN_TOKENS = 64


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, then the engine's in :data:`ENGINE_ORDER`, then the engine's others."""

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("engine") is None:
            return -1
        name = item.path.stem
        return ENGINE_ORDER.index(name) if name in ENGINE_ORDER else len(ENGINE_ORDER)

    items.sort(key=place)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServers]:
    """Real servers by name of configuration: ``engine("plain")``, ``engine("goodput")``..."""
    from hybridspec.demo.lineup import Assets
    from hybridspec.demo.target import ensure_target
    from hybridspec.loadtest.server import stop_on_sigterm

    stop_on_sigterm()
    servers = EngineServers(Assets.bundled(ensure_target()), tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def prompts(engine: EngineServers) -> list[list[int]]:
    """Token ids of 24 prompts: eight code edits, eight structured outputs, eight open questions."""
    return bundled_prompts(engine("plain"), per_workload=8)


@pytest.fixture(scope="session")
def plain_text(engine: EngineServers, prompts: list[list[int]]) -> list[list[int]]:
    """Plain SGLang's greedy token ids of every prompt, at most ``PLAIN_TOKENS`` each.

    Asked once, eight at a time. A shorter greedy answer is the beginning of a longer one, so tests
    compare with as many tokens as they ask for.
    """
    return generate(engine("plain"), prompts, PLAIN_TOKENS, concurrency=8)


@pytest.fixture(scope="session")
def own_gate(engine: EngineServers, tmp_path_factory: pytest.TempPathFactory) -> OwnGate:
    """A server with a gate folder of its own."""
    return OwnGate(engine, tmp_path_factory.mktemp("own-gate"))
