"""Slot bookkeeping against loops, on ragged and empty batches."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from hybridspec.adapters.sglang.cpu import kv_slots

POOL = 64


def _batch(seed: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = random.Random(seed)
    table = torch.randperm(12 * POOL, generator=torch.Generator().manual_seed(seed))
    requests = torch.tensor(rng.sample(range(12), rows), dtype=torch.int64)
    start = torch.tensor([rng.randrange(20) for _ in range(rows)], dtype=torch.int64)
    length = torch.tensor([rng.choice([0, 1, 3, 17]) for _ in range(rows)], dtype=torch.int64)
    return table.to(torch.int32).view(12, POOL), requests, start, start + length


CASES = [(seed, rows) for seed, rows in enumerate([0, 1, 2, 5, 12] * 3)]


@pytest.mark.parametrize(("seed", "rows"), CASES)
def test_assign_and_collect_slots(seed: int, rows: int) -> None:
    table, requests, start, end = _batch(seed, rows)
    total = int((end - start).sum())
    locations = torch.arange(1000, 1000 + total)
    expected, place = table.clone(), 0
    for request, first, last in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        for column in range(first, last):
            expected[request, column] = locations[place]
            place += 1
    kv_slots.assign_req_to_token_pool_cpu(requests, table, start, end, locations, POOL)
    assert torch.equal(table, expected)
    packed = torch.full((total + 3,), -7)  # padding behind must stay
    kv_slots.assign_extend_cache_locs_cpu(requests, table, start, end, packed, POOL)
    assert packed.tolist() == [*locations.tolist(), -7, -7, -7]


def test_collect_accepts_int32_counts_and_a_window() -> None:
    window = torch.arange(12, dtype=torch.int32).view(3, 4)
    counts = torch.tensor([2, 0, 3], dtype=torch.int32)
    out = torch.zeros(12, dtype=torch.int64)
    kv_slots.assign_extend_cache_locs_cpu(
        torch.arange(3), window, torch.zeros_like(counts), counts, out, 4
    )
    assert out[:5].tolist() == [0, 1, 8, 9, 10]


@pytest.mark.parametrize(("seed", "rows"), CASES)
@pytest.mark.parametrize(("topk", "steps"), [(1, 1), (1, 5), (4, 3)])
def test_draft_slots(seed: int, rows: int, topk: int, steps: int) -> None:
    table, requests, lengths, _ = _batch(seed, rows)
    out = torch.zeros(rows * topk * steps, dtype=torch.int64)
    kv_slots.assign_draft_cache_locs_contiguous_cpu(
        requests, table, lengths, out, POOL, topk, steps
    )
    expected: list[int] = []
    for request, length in zip(requests.tolist(), lengths.tolist(), strict=True):
        expected += table[request, length : length + topk * steps].tolist()
    assert out.tolist() == expected


@pytest.mark.parametrize(("seed", "rows"), CASES)
@pytest.mark.parametrize(("topk", "steps"), [(1, 4), (3, 3)])
def test_draft_decode_table(seed: int, rows: int, topk: int, steps: int) -> None:
    table, requests, lengths, _ = _batch(seed, rows)
    out = kv_slots.build_draft_decode_metadata_cpu(table, requests, lengths, topk, steps, POOL)
    assert out.shape == (rows * topk, POOL)
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        for branch in range(topk):
            own = length + branch * steps
            expected = torch.cat((table[request, :length], table[request, own : own + steps]))
            assert torch.equal(out[row * topk + branch, : length + steps], expected)


def test_draft_decode_table_at_the_end_of_a_row() -> None:
    table = torch.arange(POOL, dtype=torch.int32).view(1, POOL)
    lengths = torch.tensor([POOL - 2])
    out = kv_slots.build_draft_decode_metadata_cpu(table, torch.tensor([0]), lengths, 1, 4, POOL)
    assert out[0].tolist() == list(range(POOL))


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_bonus_tokens(rows: int) -> None:
    rng = random.Random(rows)
    stride = 5
    accepted = torch.randint(0, 999, (rows * stride,), dtype=torch.int32)
    lens = torch.tensor([rng.randint(1, stride) for _ in range(rows)], dtype=torch.int32)
    bonus = torch.zeros(rows, dtype=torch.int32)
    kv_slots.fill_bonus_tokens_cpu(accepted, lens, bonus, stride)
    expected = [int(accepted[row * stride + int(lens[row]) - 1]) for row in range(rows)]
    assert bonus.tolist() == expected


@pytest.mark.parametrize("rows", [0, 1, 6])
def test_accepted_locations(rows: int) -> None:
    rng = random.Random(rows)
    index = torch.tensor(
        [[rng.choice([-1, rng.randrange(rows * 4)]) for _ in range(4)] for _ in range(rows)],
        dtype=torch.int32,
    ).view(rows, 4)
    locations = torch.randperm(rows * 4 + 5)
    out = torch.full((rows * 4,), -9)
    kv_slots.fill_accept_out_cache_loc_cpu(index, locations, out)
    expected = [int(locations[i]) for i in index.flatten().tolist() if i > -1]
    assert out.tolist() == expected + [-9] * (rows * 4 - len(expected))


@pytest.mark.parametrize("select", [False, True])
def test_rotate_input_ids(select: bool) -> None:
    lens = torch.tensor([3, 1, 0, 4])
    starts = torch.tensor([0, 3, 4, 4])
    ids = torch.arange(8)
    new = torch.tensor([90, 91, 92, 93])
    chosen = torch.tensor([1, 3, 0, 5]) if select else None
    kv_slots.rotate_input_ids_cpu(ids, starts, lens, new, chosen)
    expected = [1, 90, 2, 91, 5, 93, 7, 7] if select else [1, 2, 90, 91, 5, 6, 7, 93]
    assert ids.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_copy_all_layers_by_address(dtype: torch.dtype) -> None:
    layers = [torch.randn(20, 2, 8).to(dtype) for _ in range(3)]
    values = [torch.randn(20, 2, 4).to(dtype) for _ in range(3)]
    buffers = [*layers, *values]
    target, source = torch.tensor([1, 2, 3, 9]), torch.tensor([2, 3, 1, 9])  # overlapping
    expected = [buffer.clone() for buffer in buffers]
    for want, buffer in zip(expected, buffers, strict=True):
        want[target] = buffer[source]
    kv_slots.copy_all_layer_kv_cache_cpu(
        torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64),
        torch.tensor([b[0].numel() * b.element_size() for b in buffers]),
        target,
        source,
    )
    for want, buffer in zip(expected, buffers, strict=True):
        assert torch.equal(want, buffer)


def test_copy_of_nothing() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    kv_slots.copy_all_layer_kv_cache_cpu(
        torch.tensor([0], dtype=torch.uint64), torch.tensor([16]), nothing, nothing
    )
