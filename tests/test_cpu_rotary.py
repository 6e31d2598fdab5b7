"""Rotary embedding against the formula, and the reuse of angles within a forward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridspec.adapters.sglang.cpu import rotary

DIM, HEADS, KV_HEADS, LIMIT = 8, 4, 2, 50


def _table() -> Tensor:
    angles = torch.outer(torch.arange(LIMIT), 0.3 ** torch.arange(DIM // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _reference(rows: Tensor, positions: Tensor) -> Tensor:
    out = rows.double().view(len(rows), rows.shape[1] // DIM, DIM).clone()
    for token, place in enumerate(positions.tolist()):
        for i in range(DIM // 2):
            cos, sin = _table()[place, i].double(), _table()[place, DIM // 2 + i].double()
            one = out[token, :, i].clone()
            other = out[token, :, DIM // 2 + i].clone()
            out[token, :, i] = one * cos - other * sin
            out[token, :, DIM // 2 + i] = other * cos + one * sin
    return out.flatten(1)


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("layout", ["one projection", "apart", "key first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation(tokens: int, layout: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(tokens)
    sizes = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
    whole = torch.randn(tokens, sum(sizes), generator=generator).to(dtype)
    query, key = whole[:, : sizes[0]], whole[:, sizes[0] : sizes[0] + sizes[1]]
    if layout == "apart":
        query, key = query.contiguous(), key.contiguous()
    elif layout == "key first":
        key, query = whole[:, : sizes[1]], whole[:, sizes[1] : sizes[1] + sizes[0]]
    before = whole.clone()
    positions = torch.randint(0, LIMIT, (tokens,), generator=generator)
    got = rotary.rotate(query, key, *rotary.Angles().get(None, _table(), positions, dtype))
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    for rotated, rows in zip(got, (query, key), strict=True):
        assert rotated.shape == rows.shape
        want = _reference(rows, positions)
        torch.testing.assert_close(rotated.double(), want, atol=tolerance, rtol=tolerance)
    assert torch.equal(whole, before)


def test_angles_are_kept_within_a_forward_only() -> None:
    angles, table, forward = rotary.Angles(), _table(), object()
    positions = torch.tensor([3, 7])

    def get(context: object | None) -> Tensor:
        return angles.get(context, table, positions, torch.float32)[0]

    first = get(forward)
    assert get(forward) is first
    positions.add_(1)  # a draft step
    second = get(forward)
    assert torch.equal(second[:, 0, : DIM // 2], table[[4, 8], : DIM // 2])
    positions.numpy()[:] = 0  # a preallocated buffer, refilled behind PyTorch's back
    third = get(object())
    assert torch.equal(third[:, 0, : DIM // 2], table[[0, 0], : DIM // 2])
    assert get(None) is not get(None)


def test_angles_under_inference_mode() -> None:
    angles, table = rotary.Angles(), _table()
    with torch.inference_mode():
        positions = torch.tensor([1])
        forward = object()
        angles.get(forward, table, positions, torch.float32)
        positions.add_(4)
        cos, _ = angles.get(forward, table, positions, torch.float32)
    assert torch.equal(cos[0, 0, : DIM // 2], table[5, : DIM // 2])
