"""Compares recorded features with those that a replay computes, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.adapters.suffix import SuffixCache
from hybridspec.gate.features import FeatureSet
from hybridspec.gate.replay_served import replay_served
from hybridspec.gate.tokens import TokenTable
from hybridspec.gate.traces import feature_names, read_traces


def compare_features(folder: Path, k: int, table: TokenTable | None = None) -> int:
    """Assert that replaying the trace set gives the logged features; the number of rows compared.

    The server ran with default settings of the suffix cache.
    """
    traces = read_traces(folder)
    settings = HybridConfig()
    cache = SuffixCache(
        max_depth=settings.suffix_depth,
        budget_bytes=settings.suffix_budget_mb << 20,
        max_spec_factor=settings.suffix_factor,
        min_token_prob=settings.suffix_min_prob,
    )
    data = replay_served(traces, cache, k=k)
    replayed = FeatureSet(feature_names(folder), table).compute(data.obs)
    where = {key: row for row, key in enumerate(zip(data.trace, data.position, strict=True))}
    compared = 0
    for number, trace in enumerate(traces):
        assert trace.steps is not None
        assert trace.steps.features is not None
        for position, logged in zip(trace.steps.position, trace.steps.features, strict=True):
            row = where.get((number, position))
            if row is None:
                assert np.isnan(logged).all(), "the server had a draft here and the replay has none"
                continue
            assert logged.tobytes() == replayed[row].tobytes(), (trace.id, position)
            compared += 1
    assert compared == len(replayed)
    return compared
