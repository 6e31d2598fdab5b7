"""Reads HYBRID's own counters from a running server's ``/metrics``."""

from __future__ import annotations

import re
from collections import defaultdict

import httpx

from hybridspec.loadtest.server import Server

_LINE = re.compile(r"^(hybridspec_\w+?)(?:_total)?(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Counters:
    """A snapshot; ``counters["rows", "cache"]`` sums the series whose labels include the values."""

    def __init__(self, server: Server) -> None:
        self._values: dict[tuple[str, frozenset[str]], float] = defaultdict(float)
        for line in httpx.get(f"{server.url}/metrics/", timeout=30).text.splitlines():
            if found := _LINE.match(line):
                name, labels, value = found.groups()
                marks = frozenset(mark for _, mark in _LABEL.findall(labels or ""))
                self._values[name.removeprefix("hybridspec_"), marks] += float(value)

    def __getitem__(self, key: tuple[str, ...]) -> float:
        name, *marks = key
        return sum(
            value
            for (series, labels), value in self._values.items()
            if series == name and labels.issuperset(marks)
        )
