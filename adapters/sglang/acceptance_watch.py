"""An alarm for acceptance that jumps to about none or all: a sign of wrong weights or of a fault.

Looks at windows of proposed draft tokens, source by source. Knows no requests and decides nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.base import Source

WINDOW = 2048
"""Proposed draft tokens of a source that make one window."""
# A window's acceptance rate beyond these is a jump if the window before was well inside. Choices:
# rates of whole workloads were seen between 0.2 and 0.9.
_NONE, _ALL = 0.02, 0.98
_INSIDE = (0.10, 0.95)


class AcceptanceWatch:
    """Acceptance rates by source, one window after the other."""

    def __init__(self) -> None:
        self._proposed = np.zeros(len(Source))
        self._accepted = np.zeros(len(Source))
        self._was_inside = np.zeros(len(Source), np.bool_)

    def add(
        self,
        source: NDArray[np.int8],
        proposed: NDArray[np.int32],
        accepted: NDArray[np.int32],
    ) -> list[tuple[Source, str]]:
        """Count one verified step, ``[rows]`` each; the jumps that it completes: their sources, and
        ``low`` or ``high``."""
        self._proposed += np.bincount(source, proposed, len(Source))
        self._accepted += np.bincount(source, accepted, len(Source))
        full = np.flatnonzero(self._proposed >= WINDOW)
        return [jump for value in full.tolist() if (jump := self._close(Source(value)))]

    def _close(self, source: Source) -> tuple[Source, str] | None:
        """End a source's window; its jump, if it is one."""
        rate = self._accepted[source] / self._proposed[source]
        was_inside = self._was_inside[source]
        self._proposed[source] = self._accepted[source] = 0.0
        self._was_inside[source] = _INSIDE[0] <= rate <= _INSIDE[1]
        if not was_inside or _NONE < rate < _ALL:
            return None
        return source, "low" if rate <= _NONE else "high"
