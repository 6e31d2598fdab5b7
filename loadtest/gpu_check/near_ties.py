"""Whether two greedy answers are the same text, where kernels round.

In bfloat16 a token's logits depend on the shape of the batch, so two tokens that the target finds
about equally likely may change places, and all that follows differs. Such a place is told from a
wrong token by the margin between plain decoding's two best tokens there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridspec.loadtest.client import Answer

MARGIN = 0.5
"""Nats between the two best tokens below which they may change places. bfloat16 holds logits around
20 to within 0.125; two of them and what was rounded on the way add up to a few of these."""


@dataclass(frozen=True, slots=True)
class Known:
    """Plain decoding's answer: its tokens, and at every place its best two with their margin."""

    tokens: list[int]
    best: list[tuple[int, int]]
    margins: list[float]


def known(answer: Answer) -> Known:
    """Read an answer that was asked for two top log-probabilities."""
    best, margins = [], []
    for places in answer.meta["output_top_logprobs"]:
        (high, first, *_), (low, second, *_) = places[:2]
        best.append((int(first), int(second)))
        margins.append(float(high - low))
    return Known(answer.output_ids, best, margins)


def compare(plain: Known, tokens: Sequence[int]) -> str:
    """``same``, ``near tie`` or ``different``."""
    place = 0
    while place < min(len(plain.tokens), len(tokens)) and plain.tokens[place] == tokens[place]:
        place += 1
    if place == len(plain.tokens) == len(tokens):
        return "same"
    if place >= len(plain.tokens) or place >= len(tokens):
        return "different"  # one ends where the other goes on, without another token there
    swapped = {plain.tokens[place], tokens[place]} == set(plain.best[place])
    return "near tie" if swapped and plain.margins[place] < MARGIN else "different"
