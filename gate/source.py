"""Where a row's draft comes from, as the gate's room names it. Knows no drafter."""

from __future__ import annotations

from enum import IntEnum


class Source(IntEnum):
    """Values are stable: traces, counters and :class:`Decision` arrays store them."""

    NONE = 0
    CACHE = 1
    MODEL = 2
