"""Packed matrix products: the same values as ``linear``, whatever the number of rows."""

from __future__ import annotations

import pytest
import torch

from hybridspec.adapters.sglang.cpu import linear

needs_packing = pytest.mark.skipif(not linear.supported(), reason="this PyTorch lacks oneDNN")


def _weight(out: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(out, width, generator=torch.Generator().manual_seed(out)).to(dtype)


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out", "width"), [(96, 576), (64, 1536), (33, 40)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_product(dtype: torch.dtype, out: int, width: int, with_bias: bool) -> None:
    weight = _weight(out, width, dtype)
    bias = _weight(out, 1, dtype).flatten() if with_bias else None
    packed = linear.pack(weight)
    rows = _weight(70, width, dtype)
    whole = linear.product(rows, packed, bias)
    want = torch.nn.functional.linear(rows.double(), weight.double(), None)
    if bias is not None:
        want += bias.double()
    tolerance = 1e-4 if dtype == torch.float32 else 0.5
    torch.testing.assert_close(whole.double(), want, atol=tolerance, rtol=1e-2)
    for count in (0, 1, 2, 3, 4, 5, 8, 16, 17, 32):
        # A strided slice, as a projection's output is.
        some = torch.cat((rows, rows), 1)[:count, :width]
        assert torch.equal(linear.product(some, packed, bias), whole[:count])


@needs_packing
def test_copies_follow_the_weight() -> None:
    module = torch.nn.Linear(8, 4, bias=False)
    weights = linear.PackedWeights(budget=10_000)
    rows = torch.eye(8)
    first = weights.get(module, module.weight)
    assert first is not None
    assert weights.get(module, module.weight) is first
    module.weight.data = module.weight.data * 2  # another address
    second = weights.get(module, module.weight)
    assert second is not None
    assert torch.equal(linear.product(rows, second, None), 2 * linear.product(rows, first, None))
    module.weight.data.mul_(2)  # in place: the owner of the weights must say so
    weights.clear()
    third = weights.get(module, module.weight)
    assert third is not None
    assert torch.equal(linear.product(rows, third, None), 4 * linear.product(rows, first, None))


@needs_packing
def test_copies_stay_within_the_budget() -> None:
    weights = linear.PackedWeights(budget=8 * 4 * 4)
    small, large = torch.nn.Linear(8, 4), torch.nn.Linear(8, 5)
    assert weights.get(large, large.weight) is None
    assert weights.get(small, small.weight) is not None
    assert weights.get(torch.nn.Linear(8, 4), small.weight) is None
    assert (weights.bytes, weights.refused) == (128, 2)
    half = torch.nn.Linear(8, 4).half()
    assert weights.get(half, half.weight) is None
