"""One rank's plans reach the others, whatever they are and however slow a rank is."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import distributed

from hybridspec.adapters.sglang.deferral import Extend
from hybridspec.adapters.sglang.plan_channel import PlanChannel, pack, unpack
from hybridspec.adapters.sglang.step_plan import StepPlan

WIDEST = 8
ROWS = (1, 3, 2)


def plan(rows: int, width: int, seed: int = 0) -> StepPlan:
    rng = np.random.default_rng(seed)
    return StepPlan(
        width=width,
        source=rng.integers(0, 3, rows).astype(np.int8),
        length=rng.integers(0, width, rows).astype(np.int32),
        tokens=rng.integers(0, 1 << 17, (rows, width - 1)).astype(np.int32),
        model_length=width - 1,
        model_forward=bool(seed % 2),
        branch=rng.integers(0, 4, rows).astype(np.int32) if seed % 2 else None,
        extend=tuple(Extend)[seed % len(Extend)],
    )


def same(one: StepPlan, other: StepPlan) -> bool:
    arrays = ("source", "length", "tokens")
    rest = ("width", "model_length", "model_forward", "extend")
    branches = one.branch is None and other.branch is None
    if one.branch is not None and other.branch is not None:
        branches = one.branch.dtype == other.branch.dtype and (one.branch == other.branch).all()
    return (
        bool(branches)
        and all(
            np.array_equal(getattr(one, name), getattr(other, name))
            and getattr(one, name).dtype == getattr(other, name).dtype
            for name in arrays
        )
        and all(getattr(one, name) == getattr(other, name) for name in rest)
    )


@pytest.mark.parametrize("width", [1, 2, WIDEST])
@pytest.mark.parametrize("rows", ROWS)
def test_a_plan_survives_the_way(rows: int, width: int) -> None:
    for seed in range(4):
        sent = plan(rows, width, seed)
        assert same(sent, unpack(pack(sent, WIDEST - 1), rows))


def _rank(rank: int, folder: Path, answers: Any) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3
    )
    assert distributed.group.WORLD is not None
    channel = PlanChannel(distributed.group.WORLD, 0, WIDEST)
    right = 0
    for step, rows in enumerate(ROWS):
        if rank == 2:
            time.sleep(0.2)
        sent = plan(rows, 1 + step, step)
        if channel.leads:
            channel.send(sent)
        right += channel.leads or same(channel.receive(rows), sent)
    answers[rank] = right
    distributed.destroy_process_group()


@pytest.mark.slow
def test_three_ranks_carry_out_the_same_steps(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Array("i", [-1] * 3)
    ranks = [context.Process(target=_rank, args=(rank, tmp_path, answers)) for rank in range(3)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    assert [answers[rank] for rank in range(3)] == [len(ROWS)] * 3
