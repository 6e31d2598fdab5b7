"""The Grafana dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from hybridspec.adapters.sglang.metrics import HybridMetrics

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_every_panel_asks_for_known_metrics() -> None:
    board = json.loads((DOCS / "grafana.json").read_text())
    registry = CollectorRegistry()
    HybridMetrics((1, 4), "goodput", None, registry)
    suffixes = {"counter": "_total", "histogram": "_bucket"}
    known = {f"{metric.name}{suffixes.get(metric.type, '')}" for metric in registry.collect()}
    asked = set()
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            expression = target["expr"]
            assert expression.count("(") == expression.count(")")
            assert expression.count("{") == expression.count("}")
            asked |= set(re.findall(r"hybridspec_\w+", expression))
    assert asked <= known
    # What needs no panel: names, and what never changes.
    assert known - asked <= {"hybridspec_info", "hybridspec_gate_provider", "hybridspec_merges"}
