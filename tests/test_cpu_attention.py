"""Paged attention against a loop over queries and heads in float64."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

import cpu_reference as ref
from hybridspec.adapters.sglang.cpu import attention, plan

POOL, KV_HEADS, GROUP, DIM = 1500, 3, 3, 16
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
    planned: plan.Plan,
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
    got = attention.attend(planned, query, keys, values, SCALE, attention.Workspace())
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


def _shape(dtype: torch.dtype) -> plan.Shape:
    return plan.Shape(GROUP, dtype, POOL)


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
        planned = plan.plan_uniform(table, np.array(lens), width, _shape(dtype))
        sees = [_causal(length, width) for length in lens]
        _check(planned, table, lens, [width] * len(lens), sees, dtype)


@pytest.mark.parametrize("lens", LENGTHS)
@pytest.mark.parametrize("layout", ["runs", "mixed"])
def test_tree_verify(lens: list[int], layout: str) -> None:
    rng = random.Random(3)
    width = 5
    trees = ref.mask([ref.random_tree(rng, width, 99) for _ in lens])
    table = _table(rng, lens, layout)
    planned = plan.plan_uniform(table, np.array(lens), width, _shape(torch.float32), trees.numpy())
    sees = []
    for row, length in enumerate(lens):
        whole = torch.ones(width, length, dtype=torch.bool)
        whole[:, length - width :] = trees[row]
        sees.append(whole)
    _check(planned, table, lens, [width] * len(lens), sees, torch.float32)


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
    monkeypatch.setattr(plan, "BLOCK", block)
    table = _table(random.Random(2), lens, layout)
    planned = plan.plan_ragged(table, np.array(lens), np.array(queries), _shape(torch.float32))
    sees = [_causal(n, q) for n, q in zip(lens, queries, strict=True)]
    _check(planned, table, lens, queries, sees, torch.float32)


def test_empty_batches() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    table = np.zeros((0, 0), dtype=np.int32)
    keys, values = _pools(torch.float32)
    query = torch.zeros(0, KV_HEADS * GROUP, DIM)
    for planned in (
        plan.plan_uniform(table, nothing, 1, _shape(torch.float32)),
        plan.plan_ragged(table, nothing, nothing, _shape(torch.float32)),
    ):
        out = attention.attend(planned, query, keys, values, SCALE, attention.Workspace())
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
    assert plan.contiguous_rows(table, np.array([3, 4, 1])).tolist() == [True, False, True]


def test_similar_lengths_share_a_call_and_very_different_ones_do_not() -> None:
    lens = np.array([1100, 10, 1025, 11])
    table = np.tile(np.arange(1300, dtype=np.int32), (4, 1))
    planned = plan.plan_uniform(table, lens, 1, _shape(torch.bfloat16))
    assert [(part.rows, part.keys) for part in planned.parts] == [(2, 1536), (2, 512)]


def _alone_and_together(dtype: torch.dtype, seed: int) -> None:
    """Compare one query's result when decoded alone with the same in larger calls."""
    rng = random.Random(seed)
    keys, values = _pools(dtype)
    query = torch.randn(POOL, KV_HEADS * GROUP, DIM, generator=_seeded()).to(dtype)
    table = np.arange(100, 1300, dtype=np.int32)[None]
    workspace = attention.Workspace()

    def attend(lens: list[int], width: int) -> Tensor:
        tables = np.concatenate([table] * len(lens))
        planned = plan.plan_uniform(tables, np.array(lens), width, _shape(dtype))
        rows = torch.cat([query[length - width : length] for length in lens])
        out = attention.attend(planned, rows, keys, values, SCALE, workspace)
        return out.view(len(lens), width, -1)

    for length in (1, 63, 64, 65, 511, 512, 513, rng.randrange(2, 900)):
        alone = attend([length], 1)[0, 0]
        others = [rng.randrange(1, 1100) for _ in range(rng.randrange(1, 7))]
        assert torch.equal(attend([length, *others], 1)[0, 0], alone)
        for width in (2, 3, 4, 8, 16, 32):
            place = rng.randrange(width)
            last = max(length + width - 1 - place, width)
            place = length - 1 - (last - width)
            assert torch.equal(attend([last], width)[0, place], alone)
            longer = [max(width, other) for other in others]
            assert torch.equal(attend([*longer, last], width)[-1, place], alone)
        planned = plan.plan_ragged(table, np.array([1000]), np.array([1000]), _shape(dtype))
        prefill = attention.attend(planned, query[:1000], keys, values, SCALE, workspace)
        assert torch.equal(prefill[length - 1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_result_does_not_depend_on_its_company(dtype: torch.dtype, threads: int) -> None:
    """To the last bit: what makes greedy speculation lossless in bf16 too."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _alone_and_together(dtype, threads)
    finally:
        torch.set_num_threads(before)
