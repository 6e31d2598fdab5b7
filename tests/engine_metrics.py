"""HYBRID's own counters of a running server."""

from __future__ import annotations

import httpx

from hybridspec.loadtest import server_metrics
from hybridspec.loadtest.server import Server


def counters(server: Server) -> server_metrics.Counters:
    """A snapshot of now."""
    return server_metrics.Counters(httpx.get(f"{server.url}/metrics/", timeout=30).text)
