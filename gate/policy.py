"""Policies by name: the baselines, and the factory for all of them.

A policy is stateless and vectorised. It does not know tokens, engines or how its inputs came about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.base import Decision, Policy, StepTime, StepView
from hybridspec.gate.errors import GateError
from hybridspec.gate.goodput import Goodput, predicted_length
from hybridspec.gate.source import Source

DEFAULT_LADDER = (1, 4, 8, 16, 32)
SERVED_LADDER = (1, 2, 4, 5, 8, 16, 32)
"""A server's widths where its configuration names none."""

# Predicted accepted length above which the cache draft is verified: arXiv 2606.01019.
DEFAULT_TAU = 6.0

Choice = Callable[[StepView], NDArray[np.bool_]]


class RowRule:
    """A rule that looks at each row alone: cache if ``choose`` says so, else EAGLE3 or nothing."""

    def __init__(self, name: str, ladder: Sequence[int], choose: Choice, use_model: bool) -> None:
        """``choose`` maps a view to bool ``[rows]``; rows without a cache draft never take it."""
        self.name = name
        self._widths = np.array(ladder, np.int32)
        self._choose = choose
        self.uses_model = use_model

    def decide(self, view: StepView) -> Decision:
        """Every row's choice, in the narrowest width that holds the longest chosen draft."""
        widest = int(self._widths[-1])
        model_length = min(view.model_steps, widest - 1) if self.uses_model else 0
        other = Source.MODEL if model_length else Source.NONE
        cache = self._choose(view) & (view.cache_length > 0)
        cache_length = np.minimum(view.cache_length, widest - 1)
        source = np.where(cache, Source.CACHE, other).astype(np.int8)
        length = np.where(cache, cache_length, model_length).astype(np.int32)
        return Decision(_narrowest(self._widths, length), source, length)


class BothDrafts:
    """Every cache draft, good or bad, beside EAGLE3's in one tree; EAGLE3's alone without one.

    For tests and comparisons. Where rows are chains, the cache draft alone.
    """

    uses_model = True

    def __init__(self, name: str, ladder: Sequence[int]) -> None:
        self.name = name
        self._widest = int(ladder[-1])
        self._widths = np.array(ladder, np.int32)
        self._alone = RowRule(name, ladder, _always, use_model=True)

    def decide(self, view: StepView) -> Decision:
        """Both drafts whole, the cache's cut to what the widest width leaves it."""
        steps = view.model_steps
        decision = self._alone.decide(view)
        if view.overlap is None or not 0 < steps < self._widest - 1:
            return decision
        both = decision.source == Source.CACHE
        if not both.any():
            return decision
        branch = np.where(both, np.int32(steps), np.int32(0))
        length = np.minimum(decision.length, np.int32(self._widest - 1) - branch)
        return Decision(_narrowest(self._widths, length + branch), decision.source, length, branch)


def _narrowest(widths: NDArray[np.int32], drafted: NDArray[np.int32]) -> int:
    """The narrowest of ``widths`` that holds the root and every row's ``drafted`` tokens."""
    return int(widths[np.searchsorted(widths, int(drafted.max(initial=0)) + 1)])


def _never(view: StepView) -> NDArray[np.bool_]:
    return np.zeros(view.rows, np.bool_)


def _always(view: StepView) -> NDArray[np.bool_]:
    return np.ones(view.rows, np.bool_)


def _score(view: StepView) -> NDArray[np.bool_]:
    return view.cache_score >= view.model_steps


def _above(tau: float) -> Choice:
    return lambda view: predicted_length(view) > tau


def _rule(choose: Choice, use_model: bool) -> Callable[..., Policy]:
    return lambda name, ladder, tau, cost: RowRule(name, ladder, choose, use_model)


def _threshold(name: str, ladder: Sequence[int], tau: float, cost: StepTime | None) -> Policy:
    return RowRule(name, ladder, _above(tau), use_model=True)


def _both(name: str, ladder: Sequence[int], tau: float, cost: StepTime | None) -> Policy:
    return BothDrafts(name, ladder)


def _goodput(name: str, ladder: Sequence[int], tau: float, cost: StepTime | None) -> Policy:
    if cost is None:
        raise GateError("policy 'goodput' needs a step-time model")
    return Goodput(ladder, cost)


# score: the suffix tree's score against EAGLE3's token count, as Arctic's hybrid decides.
# threshold: the rule of arXiv 2606.01019.
POLICIES: dict[str, Callable[[str, Sequence[int], float, StepTime | None], Policy]] = {
    "none": _rule(_never, use_model=False),
    "model": _rule(_never, use_model=True),
    "cache": _rule(_always, use_model=False),
    "score": _rule(_score, use_model=True),
    "threshold": _threshold,
    "both": _both,
    "goodput": _goodput,
}


def check_ladder(ladder: Sequence[int]) -> tuple[int, ...]:
    """The ladder as a tuple.

    Raises:
        GateError: not ascending whole numbers that begin with 1.
    """
    widths = tuple(int(width) for width in ladder)
    if not widths or widths[0] != 1 or any(b <= a for a, b in pairwise(widths)):
        raise GateError(f"width ladder must ascend from 1, such as 1,4,8,16,32; got {list(ladder)}")
    return widths


def make_policy(
    name: str,
    *,
    ladder: Sequence[int] = DEFAULT_LADDER,
    tau: float = DEFAULT_TAU,
    cost: StepTime | None = None,
) -> Policy:
    """The policy called ``name``.

    Args:
        name: a key of ``POLICIES``.
        ladder: verify widths to choose from (a width counts the root token), ascending from 1.
        tau: for ``threshold``, in accepted tokens.
        cost: for ``goodput``.

    Raises:
        GateError: an unknown name (the valid ones are listed), a bad ladder, or ``goodput`` without
            ``cost``.
    """
    maker = POLICIES.get(name)
    if maker is None:
        raise GateError(f"unknown policy {name!r}; valid are {', '.join(POLICIES)}")
    return maker(name, check_ladder(ladder), tau, cost)
