"""Paged attention in plain PyTorch, as planned by :mod:`.plan` once a forward.

Query heads that share a KV head are folded into the query dimension, so that grouped-query
attention reads K and V once. K/V rows of a request that lie next to each other in the pool are
used as a view; otherwise they are gathered into a workspace. The module knows nothing of SGLang's
batches, layers or pools beyond "rows of a tensor".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hybridspec.adapters.sglang.cpu.plan import Part, Plan


class Workspace:
    """Two growing buffers for gathered keys and values, reused by all layers and steps."""

    def __init__(self) -> None:
        self._keys = torch.empty(0)
        self._values = torch.empty(0)

    def gather(self, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``slots`` of both pools, valid until the next call; shapes ``[n, heads, dim]``."""
        self._keys = self._fit(self._keys, keys, len(slots))
        self._values = self._fit(self._values, values, len(slots))
        out_keys = self._keys[: len(slots) * keys[0].numel()].view(-1, *keys.shape[1:])
        out_values = self._values[: len(slots) * values[0].numel()].view(-1, *values.shape[1:])
        torch.index_select(keys, 0, slots, out=out_keys)
        torch.index_select(values, 0, slots, out=out_values)
        return out_keys, out_values

    @staticmethod
    def _fit(buffer: Tensor, pool: Tensor, rows: int) -> Tensor:
        needed = rows * pool[0].numel()
        if buffer.dtype == pool.dtype and buffer.numel() >= needed:
            return buffer
        return torch.empty(max(needed, 2 * buffer.numel()), dtype=pool.dtype)


def attend(
    plan: Plan, query: Tensor, keys: Tensor, values: Tensor, scale: float, workspace: Workspace
) -> Tensor:
    """Attention of one layer.

    Args:
        plan: of this forward; its slots lie inside the pools.
        query: ``[tokens, query_heads, dim]``.
        keys: the layer's pool, ``[slots, kv_heads, dim]``, this forward's keys included.
        values: likewise, ``[slots, kv_heads, value_dim]``.
        scale: factor on the scores.
        workspace: overwritten.

    Returns:
        ``[tokens, query_heads * value_dim]``.
    """
    out = None
    gathered, holds = (keys, values), None
    for part in plan.parts:
        if part.slots is None:
            source = keys[part.start :], values[part.start :]
        else:
            if part.slots is not holds:
                gathered, holds = workspace.gather(keys, values, part.slots), part.slots
            source = gathered
        if len(plan.parts) == 1:
            return _attend_part(part, query, *source, scale)
        if out is None:
            out = query.new_empty(query.shape[0], query.shape[1] * values.shape[-1])
        out[part.tokens] = _attend_part(part, query[part.tokens], *source, scale)
    return query.flatten(1) if out is None else out


def _attend_part(part: Part, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    rows, count, kv_heads = part.rows, part.queries, keys.shape[1]
    group = query.shape[1] // kv_heads
    needed = rows * part.keys
    key = keys[:needed].view(rows, part.keys, kv_heads, -1).transpose(1, 2)
    value = values[:needed].view(rows, part.keys, kv_heads, -1).transpose(1, 2)
    by_head = query.view(rows, count, kv_heads, group, -1).permute(0, 2, 3, 1, 4)
    padded = part.mask.shape[2]
    if padded == group * count:
        folded = by_head.reshape(rows, kv_heads, padded, -1)
    else:
        folded = query.new_zeros(rows, kv_heads, padded, query.shape[-1])
        folded[:, :, : group * count].view(by_head.shape).copy_(by_head)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=part.mask, scale=scale)
    out = out[:, :, : group * count].view(rows, kv_heads, group, count, -1)
    return out.permute(0, 3, 1, 2, 4).reshape(rows * count, -1)
