"""Takes a replaced gate between two steps of a running server."""

from __future__ import annotations

import logging
from pathlib import Path

from hybridspec.adapters.sglang.metrics import HybridMetrics
from hybridspec.adapters.sglang.predictor import MOST_ROWS, Predictor
from hybridspec.gate.watch import GateWatch

logger = logging.getLogger(__name__)


class GateSwaps:
    """The gate folder of one scheduler process, watched from construction on."""

    def __init__(
        self,
        folder: Path,
        predictor: Predictor,
        metrics: HybridMetrics,
        *,
        poll_s: float,
    ) -> None:
        """Watch ``folder``.

        Args:
            folder: of the predictor's gate.
            predictor: gets the new gates.
            metrics: counts them.
            poll_s: seconds between two looks at the folder.
        """
        assert predictor.gate is not None
        self._folder, self._predictor, self._metrics = folder, predictor, metrics
        self._watch = GateWatch(
            folder,
            predictor.gate,
            max_rows=MOST_ROWS,
            device=predictor.device,
            refused=self._refused,
            poll_s=poll_s,
        )
        self._watch.start()

    def between_steps(self) -> None:
        """Take the new gate if there is one."""
        gate = self._watch.take()
        if gate is None:
            return
        self._predictor.gate = gate
        self._metrics.gate_swapped(gate)
        logger.info("hybridspec: gate %s of %s is in use", gate.manifest.sha256[:12], self._folder)

    def close(self) -> None:
        """Watch no more."""
        self._watch.stop()

    def _refused(self, reason: str) -> None:
        self._metrics.gate_refused()
        logger.warning("hybridspec: the old gate stays: %s", reason)
