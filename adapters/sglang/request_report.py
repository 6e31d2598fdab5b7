"""What drafts did for each request: numbers for its ``meta_info``, counted step by step.

SGLang passes a finished request's ``customized_info`` on to ``meta_info``; ours is one entry for
the whole request, under :data:`KEY`, in answers that are not streamed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.base import Source

KEY = "hybridspec"
_STEPS, _PROPOSED, _ACCEPTED = range(3)


class RequestReport:
    """Steps, proposed and accepted draft tokens of every request slot, by source."""

    def __init__(self, capacity: int) -> None:
        self._counts = np.zeros((capacity, 3, len(Source)), np.int64)

    def reset(self, slots: NDArray[np.int64]) -> None:
        """New requests hold ``slots`` now."""
        self._counts[slots] = 0

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` slots; the old ones keep their counts."""
        more = capacity - len(self._counts)
        self._counts = np.pad(self._counts, ((0, more), (0, 0), (0, 0)))

    def add(
        self,
        slots: NDArray[np.int64],
        source: NDArray[np.int8],
        proposed: NDArray[np.int32],
        accepted: NDArray[np.int32],
    ) -> None:
        """Count one verified step of distinct ``slots``; all ``[rows]``."""
        self._counts[slots, _STEPS, source] += 1
        self._counts[slots, _PROPOSED, source] += proposed
        self._counts[slots, _ACCEPTED, source] += accepted

    def propose(
        self, slots: NDArray[np.int64], source: NDArray[np.int8], proposed: NDArray[np.int32]
    ) -> None:
        """Count drafts that were verified beside those that :meth:`add` is told of."""
        self._counts[slots, _PROPOSED, source] += proposed

    def of(self, slot: int) -> dict[str, dict[str, int]]:
        """The numbers of one slot by source; accepted tokens exclude the bonus token."""
        steps, proposed, accepted = self._counts[slot].tolist()
        report = {"none": {"steps": steps[Source.NONE]}}
        for source in (Source.CACHE, Source.MODEL):
            report[source.name.lower()] = {
                "steps": steps[source],
                "proposed": proposed[source],
                "accepted": accepted[source],
            }
        return report


def attach(request: Any, report: dict[str, dict[str, int]]) -> None:
    """Put a report where SGLang takes it from when it sends the request's last output."""
    if request.customized_info is None:
        request.customized_info = {}
    request.customized_info[KEY] = [report]


def is_whole_request(original: Callable[..., bool], self: Any, key: str) -> bool:
    """AROUND hook on ``SchedulerOutputStreamer.is_request_level_customized_info_key``."""
    return key == KEY or original(self, key)
