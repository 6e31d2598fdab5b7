"""Counters of a running server."""

from __future__ import annotations

import httpx

from hybridspec.loadtest import server_metrics
from hybridspec.loadtest.server import Server


def counters(server: Server) -> server_metrics.Counters:
    """A snapshot of HYBRID's own."""
    return server_metrics.Counters(httpx.get(f"{server.url}/metrics/", timeout=30).text)


def metric(server: Server, name: str) -> float:
    """The sum of all series of one metric; 0 if there is none."""
    text = httpx.get(f"{server.url}/metrics/", timeout=30).text
    series = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in series)
