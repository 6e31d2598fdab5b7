"""Paged attention against a loop over queries and heads in float64."""

from __future__ import annotations

import random

import cpu_reference as ref
import numpy as np
import pytest
import torch
from hybridspec.adapters.sglang.cpu import attention
from torch import Tensor

POOL, KV_HEADS, GROUP, DIM = 400, 3, 3, 16
SCALE = 0.25


def _pools(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (POOL, KV_HEADS, DIM)
    return (
        torch.randn(shape, generator=generator).to(dtype),
        torch.randn(shape, generator=generator).to(dtype),
    )


def _table(rng: random.Random, lens: list[int], layout: str) -> np.ndarray:
    """Disjoint pool rows: one run a request, or shuffled, or a mixture."""
    table = np.zeros((len(lens), max(lens, default=0)), dtype=np.int32)
    free = list(range(POOL))
    for row, length in enumerate(lens):
        scattered = layout == "scattered" or (layout == "mixed" and row % 2 == 0)
        if scattered:
            chosen = [free.pop(rng.randrange(len(free) // 2)) for _ in range(length)]
        else:
            chosen, free = free[-length:], free[:-length]
        table[row, :length] = chosen
        table[row, length:] = rng.randrange(POOL)  # other requests' rows: must not be read
    return table


def _check(
    plan: attention.Plan,
    table: np.ndarray,
    lens: list[int],
    queries: list[int],
    sees: list[Tensor],
    dtype: torch.dtype,
) -> None:
    keys, values = _pools(dtype)
    # A column slice of a wider matrix, as SGLang's fused projection gives.
    wide = torch.randn(sum(queries), 2 * KV_HEADS * GROUP * DIM, generator=_seeded()).to(dtype)
    query = wide[:, : KV_HEADS * GROUP * DIM].view(-1, KV_HEADS * GROUP, DIM)
    got = attention.attend(plan, query, keys, values, SCALE, attention.Workspace())
    assert got.shape == (sum(queries), KV_HEADS * GROUP * DIM)
    start = 0
    for row, (length, count) in enumerate(zip(lens, queries, strict=True)):
        slots = table[row, :length].tolist()
        rows = query[start : start + count]
        want = ref.attention(rows, keys, values, slots, sees[row], SCALE)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(
            got[start : start + count].double(), want, atol=tolerance, rtol=tolerance
        )
        start += count


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _causal(length: int, count: int) -> Tensor:
    return torch.ones(count, length, dtype=torch.bool).tril(length - count)


LENGTHS = [[5], [40], [33, 33], [9, 40, 12], [30, 31, 29, 8, 34, 10, 33, 32]]


@pytest.mark.parametrize("lens", LENGTHS)
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("layout", ["runs", "scattered", "mixed"])
def test_decode_and_chain_verify(lens: list[int], width: int, layout: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        table = _table(random.Random(len(lens)), lens, layout)
        plan = attention.plan_uniform(table, np.array(lens), width, GROUP, dtype)
        sees = [_causal(length, width) for length in lens]
        _check(plan, table, lens, [width] * len(lens), sees, dtype)


@pytest.mark.parametrize("lens", LENGTHS)
@pytest.mark.parametrize("layout", ["runs", "mixed"])
def test_tree_verify(lens: list[int], layout: str) -> None:
    rng = random.Random(3)
    width = 5
    trees = ref.mask([ref.random_tree(rng, width, 99) for _ in lens])
    table = _table(rng, lens, layout)
    plan = attention.plan_uniform(table, np.array(lens), width, GROUP, torch.float32, trees.numpy())
    sees = []
    for row, length in enumerate(lens):
        whole = torch.ones(width, length, dtype=torch.bool)
        whole[:, length - width :] = trees[row]
        sees.append(whole)
    _check(plan, table, lens, [width] * len(lens), sees, torch.float32)


@pytest.mark.parametrize(
    ("lens", "queries"),
    [([7], [7]), ([40], [12]), ([20, 40, 9], [20, 1, 4]), ([30, 6, 25], [11, 0, 25])],
)
@pytest.mark.parametrize("layout", ["runs", "mixed"])
@pytest.mark.parametrize("block", [256, 5])
def test_extend_with_and_without_prefix(
    lens: list[int],
    queries: list[int],
    layout: str,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "BLOCK", block)
    table = _table(random.Random(2), lens, layout)
    plan = attention.plan_ragged(table, np.array(lens), np.array(queries), GROUP, torch.float32)
    sees = [_causal(n, q) for n, q in zip(lens, queries, strict=True)]
    _check(plan, table, lens, queries, sees, torch.float32)


def test_empty_batches() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    table = np.zeros((0, 0), dtype=np.int32)
    keys, values = _pools(torch.float32)
    query = torch.zeros(0, KV_HEADS * GROUP, DIM)
    for plan in (
        attention.plan_uniform(table, nothing, 1, GROUP, torch.float32),
        attention.plan_ragged(table, nothing, nothing, GROUP, torch.float32),
    ):
        out = attention.attend(plan, query, keys, values, SCALE, attention.Workspace())
        assert out.shape == (0, KV_HEADS * GROUP * DIM)


def test_a_workspace_serves_growing_and_shrinking_batches() -> None:
    keys, values = _pools(torch.float32)
    workspace = attention.Workspace()
    for rows in ([3, 1, 2], list(range(50)), [7]):
        slots = torch.tensor(rows)
        got_keys, got_values = workspace.gather(keys, values, slots)
        assert torch.equal(got_keys, keys[slots])
        assert torch.equal(got_values, values[slots])


def test_runs_are_recognised() -> None:
    table = np.array([[4, 5, 6, 0], [4, 5, 7, 8], [9, 3, 3, 3]])
    assert attention.contiguous_rows(table, np.array([3, 4, 1])).tolist() == [True, False, True]


def test_similar_lengths_share_a_call_and_very_different_ones_do_not() -> None:
    lens = np.array([100, 10, 98, 101, 11])
    table = np.tile(np.arange(101, dtype=np.int32), (5, 1))
    plan = attention.plan_uniform(table, lens, 1, GROUP, torch.float32)
    assert [(part.rows, part.keys) for part in plan.parts] == [(3, 101), (2, 11)]
