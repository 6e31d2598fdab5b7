"""Matrix products with weights packed once for oneDNN.

PyTorch's ``linear`` on a CPU repacks (bf16) or reorders (fp32) the weight on every call, which
dominates when only a few rows are multiplied: decode and verify. Packing once makes 1 to 32 rows
1.4 to 2.4 times as fast (measured: AVX-512 bf16 machine, 576x3072 and 576x49152, both dtypes).
Results of a row then do not depend on how many rows are multiplied with it, bit for bit, if there
are at least :data:`MIN_ROWS`; fewer are padded, which is also faster (a kernel for four rows reads
the weights better than the one for one row). Packed weights are copies: :class:`PackedWeights`
keeps them within a byte budget. The module knows nothing of SGLang's layers.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# oneDNN picks its blocking for the number of rows it is told; 16 was as good as any other from 4 to
# 256 for 1 to 300 rows, in both dtypes.
_ROWS_HINT = 16
MIN_ROWS = 4
_DTYPES = (torch.bfloat16, torch.float32)


def pack(weight: Tensor) -> Tensor:
    """A oneDNN copy of ``weight`` ``[out, in]``, opaque except to :func:`product`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS_HINT)
    return packed


def product(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """``rows @ weight.T + bias`` for a packed weight.

    Args:
        rows: ``[n, in]`` of the weight's dtype.
        packed: from :func:`pack`.
        bias: ``[out]`` or None.

    Returns:
        ``[n, out]``; a row's values do not depend on the other rows or on ``n``.
    """
    count = rows.shape[0]
    if count < MIN_ROWS:
        padded = _padding(rows.shape[1], rows.dtype)
        padded[:count] = rows
        rows = padded
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return out[:count] if count < MIN_ROWS else out


@functools.lru_cache(maxsize=64)
def _padding(width: int, dtype: torch.dtype) -> Tensor:
    """Rows to pad with; only ever finite, as earlier rows are what they hold."""
    with torch.inference_mode(False):  # so that it can be reused outside of that mode
        return torch.zeros(MIN_ROWS, width, dtype=dtype)


def supported() -> bool:
    """Whether this PyTorch has the operators and they compute what ``linear`` does."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        rows, weight = torch.ones(2, 16), torch.eye(16)
        return torch.equal(product(rows, pack(weight), None), rows)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


class PackedWeights:
    """Packed copies of weights, kept on the modules that own the weights, within a byte budget.

    A copy is made again when the module's weight lies at another address, and after :meth:`clear`,
    which must follow every in-place change of weights.
    """

    _KEY = "_hybridspec_packed"

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self.refused = 0
        self._generation = 0

    def get(self, module: torch.nn.Module, weight: Tensor) -> Tensor | None:
        """The packed copy of ``module``'s weight, made if need be; None if it cannot be had."""
        known = module.__dict__.get(self._KEY)
        address = weight.data_ptr()
        if known is None or known[0] != self._generation or known[1] != address:
            known = (self._generation, address, self._make(weight))
            module.__dict__[self._KEY] = known
        packed: Tensor | None = known[2]
        return packed

    def _make(self, weight: Tensor) -> Tensor | None:
        if weight.dim() != 2 or weight.dtype not in _DTYPES or not weight.is_contiguous():
            return None
        size = weight.numel() * weight.element_size()
        if self.bytes + size > self.budget:
            self.refused += 1
            return None
        self.bytes += size
        return pack(weight)

    def clear(self) -> None:
        """Forget all copies; they are made again when next needed."""
        self._generation += 1
        self.bytes = self.refused = 0
