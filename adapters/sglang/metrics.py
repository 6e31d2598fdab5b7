"""Prometheus counters of the HYBRID worker, exported with the server's own ``/metrics``.

Made in the scheduler process, where SGLang has set ``PROMETHEUS_MULTIPROC_DIR`` if metrics are on.
Every counter is bound to its labels once, so a step only increments floats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from hybridspec.adapters.base import LENGTH_BINS, Source
from hybridspec.adapters.sglang.deferral import Extend
from hybridspec.adapters.sglang.step_plan import StepPlan
from hybridspec.gate.session import PROVIDERS
from hybridspec.gate.store import Gate

_SOURCES = tuple(source.name.lower() for source in Source)
_GATE_SECONDS = (25e-6, 50e-6, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 1e-2)


class HybridMetrics:
    """Counters of steps, rows, draft tokens, fall-backs and gates. One per registry."""

    def __init__(
        self,
        widths: tuple[int, ...],
        policy: str,
        gate: Gate | None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """``gate``: the one in use at start, if any."""
        steps = Counter(
            "hybridspec_steps",
            "Decode steps by verify width and by whether EAGLE3's forward ran.",
            ["width", "model_forward"],
            registry=registry,
        )
        self._steps = {
            (width, ran): steps.labels(str(width), "yes" if ran else "no")
            for width in widths
            for ran in (False, True)
        }
        self._seconds = _per_width(
            "hybridspec_step_seconds",
            "Wall time of decode steps, where it is true (a CPU), prefills' neighbours left out.",
            widths,
            registry,
        )
        self._expected_seconds = _per_width(
            "hybridspec_expected_step_seconds",
            "What the step-time model expected of the same steps.",
            widths,
            registry,
        )
        self.merges = Gauge(
            "hybridspec_merges",
            "1 where rows may verify a cache draft and EAGLE3's as two branches, else 0.",
            multiprocess_mode="liveall",
            registry=registry,
        )
        merged = Counter(
            "hybridspec_merged_rows",
            "Rows that verified a cache draft and EAGLE3's as two branches, by whose was accepted.",
            ["won"],
            registry=registry,
        )
        self._merged = [merged.labels(won) for won in _SOURCES]
        eager = Counter(
            "hybridspec_eager_steps",
            "Decode steps without a captured graph, though graphs are captured, by verify width.",
            ["width"],
            registry=registry,
        )
        self._eager = {width: eager.labels(str(width)) for width in widths}
        self._mixed = Counter(
            "hybridspec_mixed_steps",
            "Decode steps whose rows took drafts from different sources.",
            registry=registry,
        )
        self._rows = _per_source(
            "hybridspec_rows", "Rows (requests x steps) by draft source.", registry
        )
        self._proposed = _per_source(
            "hybridspec_draft_tokens", "Draft tokens verified, by source.", registry
        )
        self._accepted = _per_source(
            "hybridspec_accepted_tokens",
            "Draft tokens accepted (bonus token excluded), by source.",
            registry,
        )
        extends = Counter(
            "hybridspec_draft_extends",
            "Decode steps by when EAGLE3's draft-extend follows: now, later or never.",
            ["when"],
            registry=registry,
        )
        self._extends = {when: extends.labels(when.name.lower()) for when in Extend}
        self._lengths = Binned(
            "hybridspec_accepted_lengths",
            "Rows that verified a draft, by how many of its tokens were accepted.",
            registry,
        )
        # Verified drafts by what the policy expected of them: how many, what it expected, what was
        # accepted.
        self._expected_rows = Binned(
            "hybridspec_expected_rows", "Rows that verified a draft, by expected length.", registry
        )
        self._expected = Binned(
            "hybridspec_expected_tokens", "Expected accepted tokens of these rows.", registry
        )
        self._came_true = Binned(
            "hybridspec_expected_accepted_tokens", "Accepted tokens of these rows.", registry
        )
        alarms = Counter(
            "hybridspec_acceptance_alarms",
            "Jumps of a source's acceptance rate to about nothing (low) or all (high).",
            ["source", "level"],
            registry=registry,
        )
        self._alarms = {
            (source, level): alarms.labels(_SOURCES[source], level)
            for source in (Source.CACHE, Source.MODEL)
            for level in ("low", "high")
        }
        self._fallbacks = Counter(
            "hybridspec_fallbacks",
            "Steps or requests that went on without a part.",
            ["part"],
            registry=registry,
        )
        self._gate = Gauge(
            "hybridspec_gate_fingerprint",
            "First 48 bits of the sha256 of the gate in use, as a number; 0 without a gate.",
            multiprocess_mode="liveall",
            registry=registry,
        )
        running = Gauge(
            "hybridspec_gate_provider",
            "1 for the onnxruntime provider that runs the gate.",
            ["provider"],
            multiprocess_mode="liveall",
            registry=registry,
        )
        self._providers = {name: running.labels(name) for name in PROVIDERS}
        self._gate_seconds = Histogram(
            "hybridspec_gate_seconds",
            "Time of the gate in one decode step: features and session.",
            buckets=_GATE_SECONDS,
            registry=registry,
        )
        self._swaps = Counter(
            "hybridspec_gate_swaps", "Gates taken while serving.", registry=registry
        )
        self._refusals = Counter(
            "hybridspec_gate_refusals", "Gates refused while serving.", registry=registry
        )
        self._traces_lost = Counter(
            "hybridspec_traces_lost",
            "Recorded requests that could not be written.",
            registry=registry,
        )
        self._cache_bytes = Gauge(
            "hybridspec_suffix_cache_bytes",
            "Estimated memory of the suffix trees.",
            multiprocess_mode="liveall",
            registry=registry,
        )
        self._cache_requests = Gauge(
            "hybridspec_suffix_cache_requests",
            "Requests that the suffix cache follows.",
            multiprocess_mode="liveall",
            registry=registry,
        )
        Gauge(
            "hybridspec_info",
            "What decides.",
            ["policy"],
            multiprocess_mode="liveall",
            registry=registry,
        ).labels(policy).set(1)
        if gate is not None:
            self._show_gate(gate)

    def step(self, plan: StepPlan) -> None:
        """Count one decided step."""
        source, length = plan.source, plan.length
        self._steps[plan.width, plan.model_forward].inc()
        rows = np.bincount(source, minlength=len(_SOURCES))
        proposed = np.bincount(source, weights=length, minlength=len(_SOURCES))
        for value, (count, tokens) in enumerate(zip(rows, proposed, strict=True)):
            if count:
                self._rows[value].inc(float(count))
                self._proposed[value].inc(float(tokens))
        if plan.branch is not None:
            self._proposed[Source.MODEL].inc(float(plan.branch.sum()))
        if np.count_nonzero(rows) > 1:
            self._mixed.inc()

    def merged(self, source: NDArray[np.int8], accepted: NDArray[np.int32]) -> None:
        """Count rows that had two branches; ``source``: whose was accepted. All ``[rows]``."""
        won = np.where(accepted > 0, source, Source.NONE)
        for value, rows in enumerate(np.bincount(won, minlength=len(_SOURCES))):
            self._merged[value].inc(float(rows))

    def eager_step(self, width: int) -> None:
        """Count a step that no captured graph fitted."""
        self._eager[width].inc()

    def step_time(self, width: int, seconds: float, expected: float) -> None:
        """Count one step's wall time, and what was expected of it."""
        self._seconds[width].inc(max(seconds, 0.0))
        self._expected_seconds[width].inc(expected)

    def draft_extend(self, when: Extend) -> None:
        """Count what became of one step's draft-extend."""
        self._extends[when].inc()

    def outcome(
        self,
        source: NDArray[np.int8],
        accepted: NDArray[np.int32],
        expected: NDArray[np.float64],
    ) -> None:
        """Count the accepted draft tokens of one verified step, and what was expected of it; all
        ``[rows]``."""
        for value, tokens in enumerate(np.bincount(source, accepted, len(_SOURCES))):
            if tokens:
                self._accepted[value].inc(float(tokens))
        drafted = np.flatnonzero(source)
        if not len(drafted):
            return
        source, accepted, expected = source[drafted], accepted[drafted], expected[drafted]
        self._lengths.add(source, accepted, None)
        self._expected_rows.add(source, expected, None)
        self._expected.add(source, expected, expected)
        self._came_true.add(source, expected, accepted)

    def acceptance_alarm(self, source: Source, level: str) -> None:
        """Count a jump of a source's acceptance rate, ``low`` or ``high``."""
        self._alarms[source, level].inc()

    def fallback(self, part: str) -> None:
        """Count a step or request that went on without ``part``."""
        self._fallbacks.labels(part).inc()

    def gate_swapped(self, gate: Gate) -> None:
        """Count a gate that was taken while serving, and show it."""
        self._swaps.inc()
        self._show_gate(gate)

    def gate_ran(self, seconds: float) -> None:
        """Count one step's time of the gate."""
        self._gate_seconds.observe(seconds)

    def _show_gate(self, gate: Gate) -> None:
        self._gate.set(gate.fingerprint)
        for name, series in self._providers.items():
            series.set(float(name == gate.provider))

    def gate_refused(self) -> None:
        """Count a gate that was refused while serving; safe from any thread."""
        self._refusals.inc()

    def traces_lost(self, number: int) -> None:
        """Count recorded requests that could not be written; safe from any thread."""
        self._traces_lost.inc(number)

    def suffix_cache(self, requests: int, estimated_bytes: int) -> None:
        """Show the suffix cache's size."""
        self._cache_requests.set(requests)
        self._cache_bytes.set(estimated_bytes)


class Binned:
    """A counter by source and by the bin of a length, one of :data:`LENGTH_BINS`."""

    EDGES = np.array([1, 2, 3, 4, 8, 16])  # where each bin but the first begins

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        counter = Counter(name, text, ["source", "length"], registry=registry)
        self._cells = [
            counter.labels(source, label) for source in _SOURCES[1:] for label in LENGTH_BINS
        ]

    def add(
        self,
        source: NDArray[np.int8],
        length: NDArray[np.int32] | NDArray[np.float64],
        amount: NDArray[np.int32] | NDArray[np.float64] | None,
    ) -> None:
        """Count rows (``[rows]`` each, of a source other than none), or ``amount`` of each."""
        at = (source.astype(np.intp) - 1) * len(LENGTH_BINS)
        at += np.searchsorted(self.EDGES, length, side="right")
        counted = np.bincount(at, amount)
        for cell in np.flatnonzero(counted).tolist():
            self._cells[cell].inc(float(counted[cell]))


def _per_source(name: str, text: str, registry: CollectorRegistry) -> list[Counter]:
    counter = Counter(name, text, ["source"], registry=registry)
    return [counter.labels(source) for source in _SOURCES]


def _per_width(
    name: str, text: str, widths: tuple[int, ...], registry: CollectorRegistry
) -> dict[int, Counter]:
    counter = Counter(name, text, ["width"], registry=registry)
    return {width: counter.labels(str(width)) for width in widths}
