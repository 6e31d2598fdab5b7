"""Fixtures shared by all tests. Fast tests use none of the engine's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine_servers import EngineServers, bundled_prompts


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
