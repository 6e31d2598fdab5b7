"""Policies against hand-made steps, and goodput against a plain search."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hybridspec.gate.base import Decision, StepView
from hybridspec.gate.cost import StepCost, StepTimeModel
from hybridspec.gate.errors import GateError
from hybridspec.gate.goodput import TREE, expected_length
from hybridspec.gate.policy import POLICIES, make_policy
from hybridspec.gate.source import Source

N, C, M = Source.NONE, Source.CACHE, Source.MODEL
FREE = StepTimeModel(StepCost(base=1.0, token=0.0, context=0.0, model=0.0))


def view(
    lengths: list[int],
    accept: list[float] | None = None,
    scores: list[float] | None = None,
    model: list[float] | None = None,
) -> StepView:
    """``accept``: chance of each further cache token, per row; ``model``: survival for all rows."""
    rows = len(lengths)
    survival = None
    if accept is not None:
        survival = np.cumprod(np.repeat([[a] for a in accept], 32, axis=1), axis=1)
        survival = survival.astype(np.float32)
    return StepView(
        cache_length=np.array(lengths, np.int32),
        cache_score=np.array(scores or [0.0] * rows, np.float32),
        survival=survival,
        model_survival=np.tile(np.array(model or [], np.float32), (rows, 1)),
        context_tokens=100 * rows,
    )


def shown(decision: Decision) -> tuple[int, list[int], list[int]]:
    return decision.width, decision.source.tolist(), decision.length.tolist()


def test_baselines() -> None:
    step = view([0, 3, 20, 60], scores=[0.0, 2.5, 9.0, 30.0], model=[0.7, 0.5, 0.3])
    assert shown(make_policy("none").decide(step)) == (1, [N] * 4, [0] * 4)
    assert shown(make_policy("model").decide(step)) == (4, [M] * 4, [3] * 4)
    assert shown(make_policy("cache").decide(step)) == (32, [N, C, C, C], [0, 3, 20, 31])
    assert shown(make_policy("score").decide(step)) == (32, [M, M, C, C], [3, 3, 20, 31])
    assert make_policy("model").decide(step).model_length
    assert not make_policy("cache").decide(step).model_length


def test_threshold_uses_the_gate_and_else_the_score() -> None:
    gated = view([20, 20, 4], accept=[0.9, 0.5, 1.0], scores=[0.0, 9.0, 9.0], model=[0.7])
    assert shown(make_policy("threshold").decide(gated)) == (32, [C, M, M], [20, 1, 1])
    scored = view([20, 20], scores=[6.5, 5.5], model=[0.7])
    assert make_policy("threshold").decide(scored).source.tolist() == [C, M]
    assert make_policy("threshold", tau=5.0).decide(scored).source.tolist() == [C, C]


def test_width_is_the_narrowest_that_fits() -> None:
    for length, width in ((0, 1), (1, 4), (3, 4), (4, 8), (7, 8), (15, 16), (31, 32), (99, 32)):
        assert make_policy("cache").decide(view([length])).width == width


@pytest.mark.parametrize("name", list(POLICIES))
def test_no_head_and_empty_batches(name: str) -> None:
    policy = make_policy(name, cost=FREE)
    assert not policy.decide(view([5, 0], accept=[0.9, 0.9], scores=[9.0, 0.0])).model_length
    assert shown(policy.decide(view([]))) == (1, [], [])
    assert shown(policy.decide(view([0, 0]))) == (1, [N, N], [0, 0])


def test_goodput_weighs_the_batch() -> None:
    dear = StepTimeModel(StepCost(base=0.05, token=0.001, context=0.0, model=0.01))
    policy = make_policy("goodput", cost=dear)
    # One sure copy alone is worth the widest verify; one among 31 plain rows is not.
    assert shown(policy.decide(view([31], accept=[0.99]))) == (32, [C], [31])
    crowd = view([31] + [0] * 31, accept=[0.99] + [0.0] * 31)
    assert policy.decide(crowd).width < 32
    # Hopeless drafts cost more than they bring.
    assert shown(policy.decide(view([31] * 4, accept=[0.01] * 4))) == (1, [N] * 4, [0] * 4)
    # EAGLE3 runs when it pays, and a row whose cache draft is better keeps it.
    mixed = view([31, 0], accept=[0.95, 0.0], model=[0.8, 0.6, 0.5])
    decision = policy.decide(mixed)
    assert decision.source.tolist() == [C, M]
    assert decision.length[1] == 3
    costly = StepTimeModel(StepCost(base=0.05, token=0.001, context=0.0, model=1.0))
    assert not make_policy("goodput", cost=costly).decide(mixed).model_length


def test_goodput_lets_the_draft_head_rest_where_that_is_faster() -> None:
    cost = StepTimeModel(StepCost(base=0.05, token=0.002, context=0.0, model=0.05))
    # The free token is worth its verify: 16 * 1.5 tokens in 0.114 s against 16 in 0.082 s.
    crowd = replace(view([0] * 16, model=[0.5]), model_free=1)
    policy = make_policy("goodput", cost=cost)
    assert shown(make_policy("goodput", ladder=(1, 2), cost=cost).decide(crowd))[0] == 2
    for _ in range(5):
        cost.observe(16, 1, 1600, False, cost.prior.seconds(16, 1, 1600, False), 0.01)
    assert not make_policy("goodput", ladder=(1, 2), cost=cost).decide(crowd).model_length
    assert policy.uses_model


def plain_goodput(step: StepView, ladder: tuple[int, ...], cost: StepTimeModel) -> float:
    """Best tokens per second over every width, forward on or off, and source of each row."""
    best = 0.0
    assert step.survival is not None
    for width, forward in itertools.product(ladder, (False, True)):
        tokens = 0.0
        for row in range(step.rows):
            reach = min(width - 1, int(step.cache_length[row]))
            options = [1.0, 1.0 + float(step.survival[row, :reach].sum())]
            if forward:
                options.append(1.0 + float(step.model_survival[row, : width - 1].sum()))
            tokens += max(options)
        best = max(best, tokens / cost.predict(step.rows, width, step.context_tokens, forward))
    return best


def test_goodput_is_exact() -> None:
    rng = np.random.default_rng(0)
    ladder = (1, 4, 8, 16, 32)
    for _ in range(200):
        rows = int(rng.integers(1, 6))
        cost = StepTimeModel(StepCost(*rng.uniform([0.01, 1e-5, 0, 0], [0.05, 3e-3, 1e-6, 0.03])))
        step = view(
            rng.integers(0, 40, rows).tolist(),
            accept=rng.uniform(0, 1, rows).tolist(),
            model=np.cumprod(rng.uniform(0.2, 1, 4)).tolist(),
        )
        got = make_policy("goodput", ladder=ladder, cost=cost).decide(step)
        assert step.survival is not None
        tokens = 0.0
        for row, (source, length) in enumerate(zip(got.source, got.length, strict=True)):
            table = step.model_survival if source == M else step.survival
            tokens += 1.0 + float(table[row, :length].sum())
        seconds = cost.predict(rows, got.width, step.context_tokens, got.model_length > 0)
        assert tokens / seconds == pytest.approx(plain_goodput(step, ladder, cost), rel=1e-6)
        assert (got.length < got.width).all()


def plain_merged(step: StepView, ladder: tuple[int, ...], cost: StepTimeModel) -> float:
    """As :func:`plain_goodput`, with any split of the width between both drafts of a row.

    EAGLE3's first token is free, and a draft head that rests saves nothing here.
    """
    best = 0.0
    assert step.survival is not None
    assert step.overlap is not None
    for width, reach in itertools.product(ladder, (0, 1, step.model_steps)):
        tokens = 0.0
        for row in range(step.rows):
            long = int(step.cache_length[row])
            options = [
                float(step.survival[row, : min(width - 1, long)].sum()),
                float(step.model_survival[row, : min(reach, width - 1)].sum()),
            ]
            for branch in range(1, min(reach, width - 2) + 1):
                left = min(width - 1 - branch, long)
                both = step.survival[row, :left].sum() + step.model_survival[row, :branch].sum()
                both -= step.overlap[row, : min(left, branch)].sum()
                options.append(float(both) - TREE)
            tokens += 1.0 + max(options)
        seconds = cost.predict(step.rows, width, step.context_tokens, reach > 1)
        best = max(best, tokens / seconds)
    return best


def test_both_drafts_are_verified_where_that_is_best() -> None:
    rng = np.random.default_rng(1)
    ladder = (1, 2, 4, 5, 8, 16, 32)
    merged = 0
    for _ in range(300):
        rows = int(rng.integers(1, 5))
        cost = StepTimeModel(StepCost(*rng.uniform([0.01, 1e-5, 0, 0], [0.05, 3e-3, 1e-6, 0.03])))
        model = np.cumprod(rng.uniform(0.2, 1, 3))
        step = view(
            rng.integers(0, 40, rows).tolist(),
            accept=rng.uniform(0, 1, rows).tolist(),
            model=model.tolist(),
        )
        assert step.survival is not None
        overlap = np.minimum(step.survival[:, :3], step.model_survival)
        overlap *= rng.uniform(0, 1, (rows, 1)).astype(np.float32)
        step = replace(step, model_free=1, overlap=overlap)
        got = make_policy("goodput", ladder=ladder, cost=cost).decide(step)
        branch = np.zeros(rows, np.int32) if got.branch is None else got.branch
        assert (got.length + branch < got.width).all()
        assert (got.source[branch > 0] == C).all()
        assert (got.length[branch > 0] > 0).all()
        tokens = rows + float(expected_length(step, got).sum()) - TREE * (branch > 0).sum()
        seconds = cost.predict(rows, got.width, step.context_tokens, got.model_length > 1)
        assert tokens / seconds == pytest.approx(plain_merged(step, ladder, cost), rel=1e-6)
        merged += int((branch > 0).sum())
    assert merged > 100


def test_both_puts_every_cache_draft_beside_the_models() -> None:
    step = view([0, 3, 60], model=[0.7, 0.5, 0.3])
    assert make_policy("both").decide(step).branch is None  # rows are chains
    decision = make_policy("both").decide(replace(step, overlap=step.model_survival))
    assert shown(decision) == (32, [M, C, C], [3, 3, 28])
    assert decision.branch is not None
    assert decision.branch.tolist() == [0, 3, 3]
    assert decision.model_length == 3


def test_bad_settings_are_refused() -> None:
    with pytest.raises(
        GateError, match="valid are none, model, cache, score, threshold, both, goodput"
    ):
        make_policy("best")
    with pytest.raises(GateError, match="step-time"):
        make_policy("goodput")
    for ladder in ((), (2, 4), (1, 4, 4), (1, 8, 4)):
        with pytest.raises(GateError, match="ladder"):
            make_policy("cache", ladder=ladder)
