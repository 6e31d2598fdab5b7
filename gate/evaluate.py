"""How good predictions of the accepted length are, beside what needs no gate. Trains nothing.

"Hit" means an accepted length of at least ``HIT`` draft tokens: arXiv 2606.01019 reports precision
and recall of its gate at that length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HIT = 6
PRICE = 0.1
"""Accepted tokens that verifying one token costs in :func:`regret`: as in a batch in which ten
verified tokens take as long as a step. A choice, to compare predictors."""
_BINS = 15


def auc(score: NDArray[np.float32], hit: NDArray[np.bool_]) -> float:
    """Chance that a hit is ranked above a miss, ties counting half; NaN without both kinds."""
    hits, misses = int(hit.sum()), int((~hit).sum())
    if not hits or not misses:
        return float("nan")
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2.0
    return float((rank[inverse][hit].sum() - hits * (hits + 1) / 2.0) / (hits * misses))


def _bin(chance: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.minimum((chance * _BINS).astype(np.int64), _BINS - 1)


def expected_calibration_error(chance: NDArray[np.float32], hit: NDArray[np.bool_]) -> float:
    """Mean |predicted chance - observed share| over equal-width bins, weighted by their rows."""
    if not len(hit):
        return float("nan")
    gap = np.bincount(_bin(chance), chance - hit, minlength=_BINS)
    return float(np.abs(gap).sum() / len(hit))


def reliability(chance: NDArray[np.float32], hit: NDArray[np.bool_]) -> list[list[float]]:
    """[mean predicted chance, observed share of hits, rows] of each bin that has rows."""
    index = _bin(chance)
    rows = np.bincount(index, minlength=_BINS)
    sums = (np.bincount(index, each, minlength=_BINS) for each in (chance, hit))
    table = np.stack([*(each / np.maximum(rows, 1) for each in sums), rows], axis=1)
    return [[round(float(value), 4) for value in line] for line in table[rows > 0]]


def precision_recall_curve(
    score: NDArray[np.float32], hit: NDArray[np.bool_], points: int = 50
) -> list[list[float]]:
    """[recall, precision] at cuts of ``score`` that reach evenly spaced recalls; empty without
    hits. Ties are cut together."""
    hits = int(hit.sum())
    if not hits:
        return []
    order = np.argsort(-score, kind="stable")
    ranked, found = score[order], np.cumsum(hit[order])
    last_of_tie = np.append(ranked[1:] != ranked[:-1], True)
    at = np.unique(np.searchsorted(found, np.ceil(np.linspace(0.02, 1.0, points) * hits)))
    ends = np.flatnonzero(last_of_tie)
    at = np.unique(ends[np.searchsorted(ends, at)])
    return [
        [round(float(found[i] / hits), 4), round(float(found[i] / (i + 1)), 4)] for i in at.tolist()
    ]


def regret(
    survival: NDArray[np.float32], accepted: NDArray[np.int32], price: float = PRICE
) -> float:
    """Mean loss per row against knowing the accepted length, in accepted tokens.

    The curve's verify length is the one with most expected accepted tokens less ``price`` for each
    verified token; who knows the truth verifies exactly what will be accepted.
    """
    if not len(accepted):
        return float("nan")
    worth = np.cumsum(survival - price, axis=1)
    length = np.where(worth.max(axis=1) > 0.0, worth.argmax(axis=1) + 1, 0)
    got = np.minimum(accepted, length) - price * length
    return float((accepted * (1.0 - price) - got).mean())


def precision_recall(chosen: NDArray[np.bool_], hit: NDArray[np.bool_]) -> tuple[float, float]:
    """Precision and recall of ``chosen`` for ``hit``; NaN where nothing is chosen or hit."""
    both = int((chosen & hit).sum())
    picked, hits = int(chosen.sum()), int(hit.sum())
    return both / picked if picked else float("nan"), both / hits if hits else float("nan")


def precision_at_recall(
    score: NDArray[np.float32], hit: NDArray[np.bool_], recall: float = 0.7
) -> float:
    """Precision at the highest cut of ``score`` that reaches ``recall``; NaN without hits."""
    hits = int(hit.sum())
    if not hits:
        return float("nan")
    descending = np.sort(score[hit])[::-1]
    cut = descending[int(np.ceil(recall * hits)) - 1]
    return precision_recall(score >= cut, hit)[0]


def judge(length: NDArray[np.float32], accepted: NDArray[np.int32]) -> dict[str, float]:
    """Figures of any predictor of the accepted length (draft tokens): MAE in tokens, AUC,
    precision and recall of "predicts at least ``HIT``", and precision at recall 0.7."""
    hit = accepted >= HIT
    precision, recall = precision_recall(length >= HIT, hit)
    return {
        "mae": float(np.abs(length - accepted).mean()) if len(accepted) else float("nan"),
        "auc": auc(length, hit),
        "precision": precision,
        "recall": recall,
        "precision_at_recall_0.7": precision_at_recall(length, hit),
    }


def judge_curves(survival: NDArray[np.float32], accepted: NDArray[np.int32]) -> dict[str, float]:
    """Figures of survival curves (float32 ``[rows, K]``): those of :func:`judge`, and two more.

    The length estimate of ``mae`` is the curve's median (tokens with a chance of at least one
    half), which minimises the absolute error; ``mae_mean`` is that of the curve's sum. Choices use
    the chance of ``HIT`` tokens, cut at one half; ``ece`` is its calibration error.
    """
    hit = accepted >= HIT
    chance = survival[:, HIT - 1] if survival.shape[1] >= HIT else np.zeros(len(hit), np.float32)
    seen = judge((survival >= 0.5).sum(axis=1).astype(np.float32), accepted)
    seen["precision"], seen["recall"] = precision_recall(chance >= 0.5, hit)
    seen["auc"] = auc(chance, hit)
    seen["precision_at_recall_0.7"] = precision_at_recall(chance, hit)
    mean = survival.sum(axis=1)
    seen["mae_mean"] = float(np.abs(mean - accepted).mean()) if len(accepted) else float("nan")
    seen["ece"] = expected_calibration_error(chance, hit)
    seen["regret"] = regret(survival, accepted)
    return seen
