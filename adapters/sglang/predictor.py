"""Predicts the cache draft's survival: by the gate if there is one, else by counted acceptance.

Holds the rolling history of each request slot, which only finished steps enter.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.acceptance import CacheAcceptance
from hybridspec.gate.history import RequestHistory, pad
from hybridspec.gate.observations import Observations
from hybridspec.gate.store import load_gate

MOST_ROWS = 4096
"""Rows that the gate's buffers hold: more requests than SGLang runs at once."""


class Predictor:
    """Survival of cache drafts. Not thread-safe. ``gate`` may be set anew between two steps, to one
    of the same K."""

    def __init__(self, gate: str | None, depth: int, slots: int, device: str = "cpu") -> None:
        """Load the gate at folder ``gate``, if given, to run on ``device`` (see ``load_gate``).

        ``depth`` is the longest draft to ask for where there is no gate. Afterwards the attribute
        of that name says how long drafts must be asked for.

        Raises:
            GateError: the gate cannot be used.
        """
        self.device = device
        self.gate = load_gate(Path(gate), provider=device, max_rows=MOST_ROWS) if gate else None
        # A gate has learned from drafts of its own length; the policy cuts them to the width.
        self.depth = self.gate.k if self.gate else depth
        self._table = CacheAcceptance(self.depth)
        self._history = RequestHistory(slots)
        self.capacity = slots

    def history(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """History columns of ``slots``, see :class:`RequestHistory`."""
        return self._history.read(slots)

    def reset(self, slots: NDArray[np.int64]) -> None:
        """New requests hold ``slots`` now."""
        self._history.reset(slots)

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` request slots."""
        self._history.grow(slots)
        self.capacity = slots

    def survival(self, observations: Observations) -> NDArray[np.float32]:
        """P(at least k+1 draft tokens are accepted): float32 ``[rows, K]``, 0 without a draft."""
        drafted = np.flatnonzero(observations.length)
        result = np.zeros((observations.rows, self.depth), np.float32)
        if not len(drafted):
            return result
        rows = observations.take(drafted)
        if self.gate is None:
            values = self._table.survival(rows.match_length, rows.probs)
        else:
            values = self.gate.judge(rows).survival
        result[drafted] = values
        return result

    def learn(
        self,
        slots: NDArray[np.int64],
        observations: Observations,
        tokens: list[NDArray[np.int32]],
        source: NDArray[np.int8],
        accepted: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """Take in a finished step of some rows; how far each cache draft came true in it, int32
        ``[rows]``.

        Args:
            slots: int64 ``[rows]``.
            observations: what was known when the step began, row by row.
            tokens: what the step produced in each row, bonus token included.
            source: int8 ``[rows]``, what was verified.
            accepted: int32 ``[rows]``, accepted draft tokens.
        """
        padded, count = pad(tokens)
        matched = self._history.update(
            slots,
            observations.tokens,
            observations.length,
            padded,
            count,
            source,
            accepted,
        )
        drafted = observations.length > 0
        self._table.observe(
            observations.match_length[drafted],
            observations.length[drafted],
            matched[drafted],
            count[drafted],
        )
        return matched
