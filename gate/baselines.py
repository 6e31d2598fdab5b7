"""What predicts accepted lengths without a trained gate, as others do it, for comparison.

Each gives a length estimate, and where its authors decide by a rule of their own, that choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.acceptance import CacheAcceptance
from hybridspec.gate.evaluate import HIT, judge, judge_curves, precision_recall
from hybridspec.gate.observations import Observations

SAM_MATCH, AUTOMATON_MATCH = 5, 4
"""Least match lengths at which SAM-Decoding (arXiv 2411.10666) and TensorRT-LLM's suffix automaton
prefer the copied draft to the model's."""
_TABLE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Baseline:
    """Predictions for some rows: ``length`` float32 ``[rows]``, or ``survival`` ``[rows, K]``, and
    ``chosen`` bool ``[rows]`` where a rule of its own chooses."""

    length: NDArray[np.float32] | None = None
    survival: NDArray[np.float32] | None = None
    chosen: NDArray[np.bool_] | None = None

    def take(self, mask: NDArray[np.bool_]) -> Baseline:
        """The rows of ``mask``."""
        return Baseline(
            None if self.length is None else self.length[mask],
            None if self.survival is None else self.survival[mask],
            None if self.chosen is None else self.chosen[mask],
        )

    def rank(self) -> NDArray[np.float32]:
        """What it orders rows by for "at least ``HIT`` accepted": float32 ``[rows]``."""
        if self.survival is not None:
            chance: NDArray[np.float32] = self.survival[:, HIT - 1]
            return chance
        assert self.length is not None
        return self.length

    def judge(self, accepted: NDArray[np.int32]) -> dict[str, float]:
        """Its figures, see :func:`hybridspec.gate.evaluate.judge`."""
        if self.survival is not None:
            return judge_curves(self.survival, accepted)
        assert self.length is not None
        seen = judge(self.length, accepted)
        if self.chosen is not None:
            seen["precision"], seen["recall"] = precision_recall(self.chosen, accepted >= HIT)
        return seen


def simple_baselines(obs: Observations) -> dict[str, Baseline]:
    """The suffix tree's own score, the match length, and two rules on the latter."""
    match = obs.match_length.astype(np.float32)
    return {
        "score": Baseline(obs.score),
        "match_length": Baseline(match),
        "sam_decoding": Baseline(match, chosen=obs.match_length >= SAM_MATCH),
        "automaton": Baseline(match, chosen=obs.match_length >= AUTOMATON_MATCH),
    }


def online_table(obs: Observations, accepted: NDArray[np.int32]) -> NDArray[np.float32]:
    """Survival by an acceptance table learned on the way, as vLLM's adaptive verification does.

    It is told every draft's whole fate, verified or not, a few rows later: more than it would know
    in service.

    Args:
        obs: rows in the order of one server's life.
        accepted: int32 ``[rows]``.

    Returns:
        float32 ``[rows, K]``.
    """
    depth = obs.tokens.shape[1]
    table = CacheAcceptance(depth)
    survival = np.zeros((obs.rows, depth), np.float32)
    everything = np.full(_TABLE_ROWS, depth + 1, np.int32)
    for start in range(0, obs.rows, _TABLE_ROWS):
        part = slice(start, min(start + _TABLE_ROWS, obs.rows))
        match, length, labels = obs.match_length[part], obs.length[part], accepted[part]
        survival[part] = table.survival(match, obs.probs[part])
        table.observe(match, length, labels, everything[: len(match)])
    return survival
