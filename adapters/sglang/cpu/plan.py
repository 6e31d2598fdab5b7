"""What each attention call of a forward reads: computed once from slot tables and lengths.

A query's result must not depend on how many queries or requests share its call, bit for bit, so
that verifying a draft token gives exactly what decoding it would have given. PyTorch's CPU kernel
sums over blocks of keys and its products change with the number of rows, so keys are padded to
whole blocks and folded queries to whole groups (found by trying, kept by test). Masks hide the
padding. The module knows nothing of layers or of SGLang's batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]

# Queries per call in a prefill: bounds the mask to BLOCK x context, skips the keys after a block.
BLOCK = 256
# The kernel walks keys in blocks of 512 and sums a shorter last block in another order. Blocks of
# 64 would save 3 to 7% of a step at 300 keys; in bf16 one value in 100,000 then differs in its last
# bit, enough to change a token now and then.
KEY_BLOCK = 512
# The fewest folded queries from which a row's product no longer depends on their number.
_QUERY_GROUP = 4
# Rows are attended together when padding them to the longest adds at most this share of reads: a
# call costs about as much as reading 100 rows.
PAD_WASTE = 0.25


@dataclass(frozen=True, slots=True)
class Part:
    """Some requests that are attended in one call, all with the same number of queries.

    Attributes:
        tokens: the query tokens of these requests within the batch, request-major.
        rows: number of requests.
        queries: queries of each.
        keys: keys of each, padding included.
        start: first pool row if one request's keys are used in place, else -1.
        slots: else int64 ``[>= rows * keys]``, pool rows to gather. Parts that share one tensor
            share the gathered rows.
        mask: additive, ``[rows, 1, folded, keys]``; ``folded`` counts the query heads of a KV head
            times ``queries``, padded.
    """

    tokens: slice | Tensor
    rows: int
    queries: int
    keys: int
    start: int
    slots: Tensor | None
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """All attention calls of one forward."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What stays the same from step to step: heads per KV head, mask dtype, rows of the pool."""

    group: int
    dtype: torch.dtype
    pool: int

    def folded(self, queries: int) -> int:
        """Folded queries of one request, padded."""
        return -(-self.group * queries // _QUERY_GROUP) * _QUERY_GROUP


def padded_keys(keys: int) -> int:
    """Number of keys rounded up to whole blocks."""
    return -(-keys // KEY_BLOCK) * KEY_BLOCK


def contiguous_rows(table: Ints, lens: Ints) -> Bools:
    """Which rows of a slot table ``[n, >= max(lens)]`` are runs of consecutive slots."""
    if table.shape[1] < 2:
        return np.ones(len(table), dtype=bool)
    steps = np.diff(table, axis=1) == 1
    return np.asarray((steps | (np.arange(1, table.shape[1]) >= lens[:, None])).all(axis=1))


def _buckets(lens: Ints) -> list[NDArray[np.intp]]:
    """Split rows, longest first, so that padding a bucket wastes at most PAD_WASTE of its reads."""
    buckets: list[list[int]] = []
    used = 0
    for row in np.argsort(-lens, kind="stable").tolist():
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
    table: Ints, lens: Ints, queries: int, shape: Shape, tree: Bools | None = None
) -> Plan:
    """Plan a step in which every request has the same number of queries (decode, verify).

    Args:
        table: integer ``[rows, >= max(lens)]``, the pool rows of each request's keys.
        lens: integer ``[rows]``, keys of each request, its queries' own included.
        queries: queries of each request, which are its last keys.
        shape: of the model.
        tree: bool ``[rows, queries, queries]``, which of the last keys a query sees; causal if
            None.
    """
    parts = []
    runs = contiguous_rows(table, lens)
    for rows in _buckets(-(-lens // KEY_BLOCK) * KEY_BLOCK):
        keys = padded_keys(int(lens[rows].max()))
        start, slots = -1, None
        first = int(table[rows[0], 0])
        if len(rows) == 1 and runs[rows[0]] and first + keys <= shape.pool:
            start = first
        else:
            slots = _slots(table[rows], lens[rows], keys)
        mask = _mask(lens[rows], queries, keys, shape, None if tree is None else tree[rows])
        tokens = _tokens(rows, queries)
        parts.append(Part(tokens, len(rows), queries, keys, start, slots, mask))
    return Plan(tuple(parts))


def _slots(table: Ints, lens: Ints, keys: int) -> Tensor:
    """Pool rows of each request, its last one repeated as padding, int64 ``[rows * keys]``."""
    columns = np.minimum(np.arange(keys), lens[:, None] - 1)
    rows = np.arange(len(lens))[:, None]
    return torch.from_numpy(table[rows, columns].astype(np.int64).reshape(-1))


def _tokens(rows: NDArray[np.intp], queries: int) -> slice | Tensor:
    if bool((np.diff(rows) == 1).all()):
        return slice(int(rows[0]) * queries, (int(rows[-1]) + 1) * queries)
    return torch.from_numpy((rows[:, None] * queries + np.arange(queries)).reshape(-1))


def _mask(lens: Ints, queries: int, keys: int, shape: Shape, tree: Bools | None) -> Tensor:
    last = lens[:, None] - queries + np.arange(queries)
    sees = np.arange(keys) <= last[:, :, None]
    if tree is not None:
        for row, length in enumerate(lens.tolist()):
            sees[row, :, length - queries : length] = tree[row]
            sees[row, :, length:] = False
    mask = additive(torch.from_numpy(sees), shape.dtype)[:, None].expand(-1, shape.group, -1, -1)
    return _pad_folded(mask.reshape(len(lens), 1, shape.group * queries, keys), queries, shape)


def _pad_folded(mask: Tensor, queries: int, shape: Shape) -> Tensor:
    """Add rows for the padding of folded queries; they see everything and are thrown away."""
    missing = shape.folded(queries) - mask.shape[2]
    return torch.nn.functional.pad(mask, (0, 0, 0, missing)) if missing else mask


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a query sees a key, minus infinity elsewhere."""
    return torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, float("-inf"))


def plan_ragged(table: Ints, lens: Ints, queries: Ints, shape: Shape) -> Plan:
    """Plan a causal extend: each request's ``queries`` are the last of its ``lens`` keys.

    A request is cut into blocks of :data:`BLOCK` queries. Requests without queries are skipped.
    """
    parts = []
    runs = contiguous_rows(table, lens)
    block = min(BLOCK, int(queries.max(initial=1)))
    masks = _BlockMasks(block, int(lens.max(initial=0)), shape)
    first = 0
    for row, (length, count) in enumerate(zip(lens.tolist(), queries.tolist(), strict=True)):
        start, slots = -1, None
        padded = padded_keys(length)
        if runs[row] and count and int(table[row, 0]) + padded <= shape.pool:
            start = int(table[row, 0])
        elif count:
            slots = _slots(table[row : row + 1], lens[row : row + 1], padded)
        for begin in range(0, count, block):
            width = min(block, count - begin)
            keys = length - count + begin + width
            tokens = slice(first + begin, first + begin + width)
            mask = masks.get(width, keys)
            parts.append(Part(tokens, 1, width, mask.shape[3], start, slots, mask))
        first += count
    return Plan(tuple(parts))


class _BlockMasks:
    """Masks of blocks of queries that are their request's last keys, cut from one template.

    Counted from a block's last key, which keys its queries see is the same for every block.
    """

    def __init__(self, block: int, longest: int, shape: Shape) -> None:
        self._block, self._longest, self._shape = block, longest, shape
        columns = torch.arange(longest + KEY_BLOCK)
        last = torch.arange(longest - block, longest)
        template = additive(columns <= last[:, None], shape.dtype)
        self._template = template.expand(shape.group, -1, -1).contiguous()

    def get(self, queries: int, keys: int) -> Tensor:
        """Mask of ``queries`` of which the last one sees ``keys`` keys."""
        left = self._longest - keys
        width = padded_keys(keys)
        mask = self._template[:, self._block - queries :, left : left + width]
        mask = mask.reshape(1, 1, self._shape.group * queries, width)
        return _pad_folded(mask, queries, self._shape)
