"""Paged attention in plain PyTorch, as planned by :mod:`.plan` once a forward.

Query heads that share a KV head are folded into the query dimension, so that grouped-query
attention reads K and V once. K/V rows of a request that lie next to each other in the pool are
used as a view; otherwise they are gathered into a workspace. The module knows nothing of SGLang's
batches, layers or pools beyond "rows of a tensor".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hybridspec.adapters.sglang.cpu.plan import Part, Plan


class Workspace:
    """Growing buffers for gathered keys and values and folded queries, for all layers and steps.

    Never freed, never larger than twice what the largest step needed. Buffers start as zeros and
    hold only what was written before, so what is read beyond a step's own data is finite.
    """

    def __init__(self) -> None:
        self._keys = torch.zeros(0)
        self._values = torch.zeros(0)
        self._queries = torch.zeros(0)

    def gather(self, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``slots`` of both pools, valid until the next call; shapes ``[n, heads, dim]``."""
        count = len(slots)
        self._keys, out_keys = _take(self._keys, (count, *keys.shape[1:]), keys.dtype)
        self._values, out_values = _take(self._values, (count, *values.shape[1:]), values.dtype)
        torch.index_select(keys, 0, slots, out=out_keys)
        torch.index_select(values, 0, slots, out=out_values)
        return out_keys, out_values

    def queries(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of this shape with arbitrary finite content, valid until the next call."""
        self._queries, out = _take(self._queries, shape, dtype)
        return out


def _take(buffer: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    needed = math.prod(shape)
    if buffer.dtype != dtype or buffer.numel() < needed:
        with torch.inference_mode(False):  # so that it can be reused outside of that mode
            buffer = torch.zeros(max(needed, 2 * buffer.numel()), dtype=dtype)
    return buffer, buffer[:needed].view(shape)


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
            source = keys, values
        else:
            if part.slots is not holds:
                gathered, holds = workspace.gather(keys, values, part.slots), part.slots
            source = gathered
        if len(plan.parts) == 1:
            return _attend_part(part, query, *source, scale, workspace)
        if out is None:
            out = query.new_empty(query.shape[0], query.shape[1] * values.shape[-1])
        out[part.tokens] = _attend_part(part, query[part.tokens], *source, scale, workspace)
    return query.flatten(1) if out is None else out


def _attend_part(
    part: Part, query: Tensor, keys: Tensor, values: Tensor, scale: float, workspace: Workspace
) -> Tensor:
    rows, count, kv_heads = part.rows, part.queries, keys.shape[1]
    heads, dim = query.shape[1], query.shape[2]
    group = heads // kv_heads
    by_head = query.view(rows, count, kv_heads, group, dim)
    if count > 1:
        by_head = by_head.permute(0, 2, 3, 1, 4)
    else:
        by_head = by_head.view(rows, kv_heads, group, 1, dim)
    padded = part.mask.shape[2]
    if padded == group * count:
        folded = by_head.reshape(rows, kv_heads, padded, dim)
    else:
        folded = workspace.queries((rows, kv_heads, padded, dim), query.dtype)
        folded[:, :, : group * count].view(by_head.shape).copy_(by_head)
    out = scaled_dot_product_attention(
        folded, _heads_first(keys, part), _heads_first(values, part), part.mask, scale=scale
    )
    if padded != group * count:
        out = out[:, :, : group * count]
    if count > 1:
        out = out.view(rows, kv_heads, group, count, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, -1)


def _heads_first(pool: Tensor, part: Part) -> Tensor:
    """View of one part's keys or values as ``[rows, heads, keys, dim]``; one call, not four."""
    _, heads, dim = pool.shape
    row = heads * dim
    return pool.as_strided(
        (part.rows, heads, part.keys, dim),
        (part.keys * row, dim, row, 1),
        pool.storage_offset() + max(part.start, 0) * row,
    )
