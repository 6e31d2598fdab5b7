"""Hands what the planner knows of served steps and ended requests to the trace recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.adapters.sglang.requests import Followed, prompt, scope
from hybridspec.adapters.sglang.trace_recorder import TraceRecorder
from hybridspec.gate.features import DRAFT_FEATURES, HISTORY_FEATURES, FeatureSet
from hybridspec.gate.observations import Observations
from hybridspec.gate.step_outcome import StepOutcome

PLAIN_FEATURES = (*DRAFT_FEATURES, *HISTORY_FEATURES)
"""Features that a server without a gate can log: all that need no token table."""


class StepRecorder:
    """One per scheduler process that records."""

    def __init__(
        self,
        settings: HybridConfig,
        folder: str,
        *,
        features: FeatureSet | None,
        model: str,
        lost: Callable[[int], None],
    ) -> None:
        """Record into ``folder``.

        Args:
            settings: how much to record.
            folder: of the trace set.
            features: the gate's, which are logged if ``trace_features`` says so; None without a
                gate.
            model: name of the target.
            lost: told how many traces could not be kept.
        """
        self._scope = settings.suffix_scope
        self._features: FeatureSet | None = None
        if settings.trace_features:
            self._features = features or FeatureSet(PLAIN_FEATURES)
        self._traces = TraceRecorder(
            Path(folder),
            sample=settings.trace_sample,
            budget_bytes=settings.trace_budget_mb << 20,
            features=self._features.names if self._features else (),
            model=model,
            lost=lost,
        )

    def step(
        self,
        number: int,
        rows: Sequence[Followed],
        known: Observations,
        width: int,
        done: StepOutcome,
    ) -> None:
        """Take in a verified step: what was known, its width, and what came of it."""
        features = None
        if self._features is not None:
            features = self._features.compute(known)
            features[known.length == 0] = np.nan
        rids = [row.request.rid for row in rows]
        self._traces.step(
            number,
            rids,
            known.generated_length,
            done.source,
            width,
            done.proposed,
            done.accepted,
            features,
        )

    def finish(self, rid: str, row: Followed) -> None:
        """A request ended."""
        shared_by = scope(row.request, self._scope)
        named = None if shared_by in (None, (None, None)) else str(shared_by)
        self._traces.finish(rid, prompt(row.request), row.whole_output(), named, row.ended_by())

    def drop(self, rid: str) -> None:
        """A request vanished."""
        self._traces.drop(rid)

    def close(self) -> None:
        """Write what waits."""
        self._traces.close()
