"""Takes a replaced gate between two steps of a running server, on all ranks at the same one."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from hybridspec.adapters.sglang.metrics import HybridMetrics
from hybridspec.adapters.sglang.predictor import MOST_ROWS, Predictor
from hybridspec.gate.watch import GateWatch

logger = logging.getLogger(__name__)

AGREE_EVERY = 64
"""Steps between two questions whether all ranks have the same new gate ready. Asking is a small
collective, which every rank must enter at the same step."""


class GateSwaps:
    """The gate folder of one scheduler process, watched from construction on."""

    def __init__(
        self,
        folder: Path,
        predictor: Predictor,
        metrics: HybridMetrics,
        *,
        poll_s: float,
        ranks: ProcessGroup | None,
    ) -> None:
        """Watch ``folder``.

        Args:
            folder: of the predictor's gate.
            predictor: gets the new gates.
            metrics: counts them.
            poll_s: seconds between two looks at the folder.
            ranks: all ranks' group on the host; None for a single rank.
        """
        assert predictor.gate is not None
        self._folder, self._predictor, self._metrics = folder, predictor, metrics
        self._ranks = ranks
        self._watch = GateWatch(
            folder,
            predictor.gate,
            max_rows=MOST_ROWS,
            device=predictor.device,
            refused=self._refused,
            poll_s=poll_s,
        )
        self._watch.start()

    def between_steps(self, step: int) -> None:
        """Take the new gate if there is one; ``step`` counts alike on all ranks."""
        if self._ranks is not None and (
            step % AGREE_EVERY or not all_offer(self._watch.offered, self._ranks)
        ):
            return
        gate = self._watch.take()
        if gate is None:
            return
        self._predictor.gate = gate
        self._metrics.gate_swapped(gate.fingerprint)
        logger.info("hybridspec: gate %s of %s is in use", gate.manifest.sha256[:12], self._folder)

    def close(self) -> None:
        """Watch no more."""
        self._watch.stop()

    def _refused(self, reason: str) -> None:
        self._metrics.gate_refused()
        logger.warning("hybridspec: the old gate stays: %s", reason)


def all_offer(fingerprint: int, ranks: ProcessGroup) -> bool:
    """Whether all ranks have the gate of this fingerprint ready (0: none); every rank must ask."""
    seen = torch.tensor([fingerprint, -fingerprint], dtype=torch.int64)
    distributed.all_reduce(seen, op=distributed.ReduceOp.MIN, group=ranks)
    return int(seen[0]) == -int(seen[1]) != 0
