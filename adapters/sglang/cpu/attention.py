"""Paged attention in plain PyTorch: what to read is planned once a forward, then used by every layer.

Query heads that share a KV head are folded into the query dimension, so that grouped-query
attention reads K and V once. K/V rows of a request that lie next to each other in the pool are
used as a view; otherwise they are gathered into a workspace. Queries of one request are contiguous
and causal unless a tree mask says otherwise. The module knows nothing of SGLang's batches, layers
or pools beyond "rows of a tensor".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# Queries per call in a prefill: bounds the mask to BLOCK x context and skips the keys after a block.
BLOCK = 256
# Rows are attended together when padding them to the longest adds at most this share of reads.
PAD_WASTE = 0.25


@dataclass(frozen=True, slots=True)
class Part:
    """Some requests that are attended in one call, all with the same number of queries.

    ``first_query`` is set if their queries are consecutive in the batch, else ``query_rows`` lists
    them. ``start`` is the first pool row if one request's keys are contiguous there, else ``slots``
    lists them, ``[rows * keys]``. ``mask`` is additive, ``[rows, 1, group * queries, keys]``, or None
    if every query sees every key.
    """

    rows: int
    queries: int
    keys: int
    first_query: int
    query_rows: Tensor | None
    start: int
    slots: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Plan:
    """All calls of one forward, for ``group`` query heads a KV head."""

    parts: tuple[Part, ...]
    group: int


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


def contiguous_rows(table: NDArray[np.integer], lens: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which rows of a slot table ``[n, >= max(lens)]`` are runs of consecutive slots."""
    if table.shape[1] < 2:
        return np.ones(len(table), dtype=bool)
    steps = np.diff(table, axis=1) == 1
    return np.asarray((steps | (np.arange(1, table.shape[1]) >= lens[:, None])).all(axis=1))


def _buckets(lens: NDArray[np.integer]) -> list[NDArray[np.intp]]:
    """Split rows, longest first, so that padding a bucket wastes at most PAD_WASTE of its reads."""
    order = np.argsort(-lens, kind="stable")
    buckets: list[list[int]] = []
    used = 0
    for row in order.tolist():
        longest = int(lens[buckets[-1][0]]) if buckets else 0
        total = used + int(lens[row])
        if buckets and longest * (len(buckets[-1]) + 1) <= total * (1 + PAD_WASTE):
            buckets[-1].append(row)
            used = total
        else:
            buckets.append([row])
            used = int(lens[row])
    return [np.sort(np.array(bucket)) for bucket in buckets]


def plan_uniform(
    table: NDArray[np.integer],
    lens: NDArray[np.integer],
    queries: int,
    group: int,
    dtype: torch.dtype,
    tree: NDArray[np.bool_] | None = None,
) -> Plan:
    """Plan a step in which every request has the same number of queries (decode, verify).

    Args:
        table: integer ``[rows, >= max(lens)]``, the pool rows of each request's keys.
        lens: integer ``[rows]``, keys of each request, its queries' own included.
        queries: queries of each request, which are its last keys.
        group: query heads that share a KV head.
        dtype: of the attention, for the mask.
        tree: bool ``[rows, queries, queries]``, which of the last keys a query sees; causal if
            None.
    """
    parts = []
    runs = contiguous_rows(table, lens)
    for rows in _buckets(lens):
        keys = int(lens[rows].max())
        single = len(rows) == 1
        start = int(table[rows[0], 0]) if single and runs[rows[0]] else -1
        slots = None
        if start < 0:
            columns = np.minimum(np.arange(keys), lens[rows, None] - 1)
            slots = torch.from_numpy(table[rows[:, None], columns].astype(np.int64).reshape(-1))
        plain = tree is None and queries == 1 and bool((lens[rows] == keys).all())
        mask = None if plain else _mask(lens[rows], queries, keys, group, dtype, tree, rows)
        neighbours = bool((np.diff(rows) == 1).all())
        query_rows = None
        if not neighbours:
            wanted = rows[:, None] * queries + np.arange(queries)
            query_rows = torch.from_numpy(wanted.reshape(-1).astype(np.int64))
        first = int(rows[0]) * queries
        parts.append(Part(len(rows), queries, keys, first, query_rows, start, slots, mask))
    return Plan(tuple(parts), group)


def _mask(
    lens: NDArray[np.integer],
    queries: int,
    keys: int,
    group: int,
    dtype: torch.dtype,
    tree: NDArray[np.bool_] | None,
    rows: NDArray[np.intp],
) -> Tensor:
    last = lens[:, None] - queries + np.arange(queries)
    sees = np.arange(keys) <= last[:, :, None]
    if tree is not None:
        for place, (row, length) in enumerate(zip(rows.tolist(), lens.tolist(), strict=True)):
            sees[place, :, length - queries : length] = tree[row]
    mask = additive(torch.from_numpy(sees), dtype)
    return mask[:, None].expand(-1, group, -1, -1).reshape(len(lens), 1, group * queries, keys)


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a query sees a key, minus infinity elsewhere."""
    return torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, float("-inf"))


def plan_ragged(
    table: NDArray[np.integer],
    lens: NDArray[np.integer],
    queries: NDArray[np.integer],
    group: int,
    dtype: torch.dtype,
) -> Plan:
    """Plan a causal extend: each request's ``queries`` are the last of its ``lens`` keys.

    A request is cut into blocks of :data:`BLOCK` queries. Requests without queries are skipped.
    """
    parts = []
    runs = contiguous_rows(table, lens)
    widest = int(lens.max(initial=0))
    # Column j of a block's mask, counted from the right, is the same for every block.
    block = min(BLOCK, int(queries.max(initial=1)))
    template = additive(torch.arange(widest) <= torch.arange(-block, 0)[:, None] + widest, dtype)
    template = template.expand(group, -1, -1).contiguous()
    first = 0
    for row in range(len(lens)):
        prefix = int(lens[row] - queries[row])
        slots = None
        if not runs[row]:
            slots = torch.from_numpy(table[row, : lens[row]].astype(np.int64))
        for begin in range(0, int(queries[row]), block):
            count = min(block, int(queries[row]) - begin)
            keys = prefix + begin + count
            mask = template[:, block - count :, widest - keys :]
            mask = mask.reshape(1, 1, group * count, keys)
            start = int(table[row, 0]) if slots is None else -1
            part_slots = None if slots is None else slots[:keys]
            parts.append(Part(1, count, keys, first + begin, None, start, part_slots, mask))
        first += int(queries[row])
    return Plan(tuple(parts), group)


def attend(
    plan: Plan, query: Tensor, keys: Tensor, values: Tensor, scale: float, workspace: Workspace
) -> Tensor:
    """Attention of one layer.

    Args:
        plan: from :func:`plan_uniform` or :func:`plan_ragged`.
        query: ``[tokens, query_heads, dim]``.
        keys: the layer's pool, ``[slots, kv_heads, dim]``.
        values: likewise, ``[slots, kv_heads, value_dim]``.
        scale: factor on the scores.

    Returns:
        ``[tokens, query_heads * value_dim]``.
    """
    if len(plan.parts) == 1:
        return _attend_part(plan.parts[0], plan.group, query, keys, values, scale, workspace)
    out = query.new_empty(query.shape[0], query.shape[1] * values.shape[-1])
    for part in plan.parts:
        count = part.rows * part.queries
        if part.query_rows is None:
            rows: slice | Tensor = slice(part.first_query, part.first_query + count)
        else:
            rows = part.query_rows
        out[rows] = _attend_part(part, plan.group, query[rows], keys, values, scale, workspace)
    return out


def _attend_part(
    part: Part,
    group: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    workspace: Workspace,
) -> Tensor:
    if part.slots is None:
        key = keys[part.start : part.start + part.keys]
        value = values[part.start : part.start + part.keys]
    else:
        key, value = workspace.gather(keys, values, part.slots)
    rows, count, kv_heads = part.rows, part.queries, keys.shape[1]
    key = key.view(rows, part.keys, kv_heads, -1).transpose(1, 2)
    value = value.view(rows, part.keys, kv_heads, -1).transpose(1, 2)
    folded = query.view(rows, count, kv_heads, group, -1).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(rows, kv_heads, group * count, -1)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=part.mask, scale=scale)
    out = out.view(rows, kv_heads, group, count, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, -1)
