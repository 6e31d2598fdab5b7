"""Reads HYBRID's counters from the text of a server's ``/metrics``. Opens no connection."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from hybridspec.adapters.base import LENGTH_BINS

_LINE = re.compile(r"^(hybridspec_\w+?)(?:_total)?(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
SOURCES = ("none", "cache", "model")
_EXPECTED = ("expected_rows", "expected_tokens", "expected_accepted_tokens")


class Counters:
    """A snapshot; ``counters["rows", "cache"]`` sums the series whose labels include the values."""

    def __init__(self, text: str) -> None:
        self._values: dict[tuple[str, frozenset[str]], float] = defaultdict(float)
        for line in text.splitlines():
            if found := _LINE.match(line):
                name, labels, value = found.groups()
                marks = frozenset(mark for _, mark in _LABEL.findall(labels or ""))
                self._values[name.removeprefix("hybridspec_"), marks] += float(value)

    def __bool__(self) -> bool:
        """Whether the server has HYBRID's counters at all."""
        return bool(self._values)

    def __getitem__(self, key: tuple[str, ...]) -> float:
        name, *marks = key
        return sum(
            value
            for (series, labels), value in self._values.items()
            if series == name and labels.issuperset(marks)
        )


def between(before: Counters, after: Counters) -> dict[str, Any] | None:
    """What the server did between two snapshots; None if it is no HYBRID server or did nothing.

    Returns:
        ``steps``, ``accepted_length`` (draft tokens accepted per row and step, bonus excluded), and
        by source ``row_share``, ``acceptance_rate`` (None where nothing was proposed),
        ``accepted_lengths`` (verified drafts by accepted length, as bins of
        :data:`LENGTH_BINS`) and ``expected`` (by bin of the expected length: rows, tokens that were
        expected, and accepted ones).
    """

    def grew(*key: str) -> float:
        return after[key] - before[key]

    rows = grew("rows")
    if not after or rows <= 0:
        return None
    rates = {}
    for source in ("cache", "model"):
        proposed = grew("draft_tokens", source)
        rates[source] = grew("accepted_tokens", source) / proposed if proposed else None
    return {
        "steps": grew("steps"),
        "accepted_length": grew("accepted_tokens") / rows,
        "row_share": {source: grew("rows", source) / rows for source in SOURCES},
        "acceptance_rate": rates,
        "accepted_lengths": {
            source: [grew("accepted_lengths", source, length) for length in LENGTH_BINS]
            for source in SOURCES[1:]
        },
        "expected": {
            source: [[grew(name, source, length) for name in _EXPECTED] for length in LENGTH_BINS]
            for source in SOURCES[1:]
        },
        "fallbacks": grew("fallbacks"),
    }
