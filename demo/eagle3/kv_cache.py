"""Keys and values of many sequences that decode together, and attention of one token of each.

On a CPU nearly all the time of a batched decode step that is not products with weights goes into
reading keys and values, and batched products read tensors without gaps two to three times as fast
as slices of longer ones. So a group of slots owns tensors just as long as its longest sequence
needs, and they are made anew when that changes. The module knows nothing of layers or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Slots that share one length: small enough that a long neighbour costs little.
GROUP = 16
# Tokens by which a group's tensors grow and shrink.
STEP = 64


@dataclass(slots=True)
class _Group:
    """``keys`` and ``values`` are ``[layers, slots * kv_heads, capacity, dim]``."""

    keys: Tensor
    values: Tensor

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def resize(self, tokens: int) -> None:
        """Hold ``tokens`` of each sequence, rounded up; shrink only where much less is needed."""
        wanted = -(-tokens // STEP) * STEP
        if self.capacity - 2 * STEP <= wanted <= self.capacity:
            return
        kept = min(wanted, self.capacity)
        self.keys = _resized(self.keys, wanted, kept)
        self.values = _resized(self.values, wanted, kept)


def _resized(old: Tensor, capacity: int, kept: int) -> Tensor:
    # Zeros, not garbage: what lies beyond a sequence's end is masked, and 0 * NaN would not be 0.
    new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
    new[:, :, :kept] = old[:, :, :kept]
    return new


class KVCache:
    """Caches of ``slots`` sequences. Grows with them; never shared between threads."""

    def __init__(
        self, layers: int, slots: int, kv_heads: int, dim: int, dtype: torch.dtype
    ) -> None:
        """Empty caches; ``dim`` is the head's size."""
        self._heads = kv_heads
        self._slots = slots
        self._groups = []
        for first in range(0, slots, GROUP):
            size = (layers, min(GROUP, slots - first) * kv_heads, STEP, dim)
            keys, values = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
            self._groups.append(_Group(keys, values))
        self._masks: list[Tensor] = []
        self._positions: list[Tensor] = []

    def reserve(self, slots: list[int], tokens: int) -> None:
        """Make room for a prompt of ``tokens`` in each of ``slots``."""
        for index in {slot // GROUP for slot in slots}:
            group = self._groups[index]
            group.resize(max(tokens, group.capacity))

    def put_prompts(self, layer: int, slots: list[int], keys: Tensor, values: Tensor) -> None:
        """Write ``[rows, kv_heads, length, dim]`` from position 0 of ``slots``."""
        length, heads = keys.shape[2], self._heads
        for row, slot in enumerate(slots):
            group, first = self._groups[slot // GROUP], slot % GROUP * heads
            group.keys[layer, first : first + heads, :length] = keys[row]
            group.values[layer, first : first + heads, :length] = values[row]

    def begin_step(self, positions: Tensor, queries: int) -> None:
        """Prepare for one token of every slot at ``positions``, int64 ``[slots]``.

        Args:
            positions: where each slot's token stands; everything before it is attended to.
            queries: query heads of one KV head.
        """
        self._masks, self._positions = [], []
        for index, group in enumerate(self._groups):
            mine = positions[index * GROUP : (index + 1) * GROUP]
            group.resize(int(mine.max()) + 1)
            ahead = torch.arange(group.capacity) > mine[:, None]
            mask = torch.zeros(ahead.shape, dtype=group.keys.dtype).masked_fill_(ahead, -torch.inf)
            each = mask[:, None, None].expand(-1, self._heads, queries, -1)
            self._masks.append(each.reshape(-1, queries, group.capacity))
            self._positions.append(mine.repeat_interleave(self._heads))

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of this step's tokens in one layer, after writing their keys and values.

        Args:
            layer: which.
            query: ``[slots * kv_heads, queries, dim]``.
            keys: ``[slots * kv_heads, dim]``.
            values: likewise.

        Returns:
            Shaped as ``query``.
        """
        scale = query.shape[-1] ** -0.5
        done, first = [], 0
        for group, mask, positions in zip(self._groups, self._masks, self._positions, strict=True):
            rows = slice(first, first + len(positions))
            first += len(positions)
            where = torch.arange(len(positions))
            group.keys[layer].index_put_((where, positions), keys[rows])
            group.values[layer].index_put_((where, positions), values[rows])
            scores = torch.baddbmm(
                mask, query[rows], group.keys[layer].transpose(1, 2), alpha=scale
            )
            done.append(torch.bmm(torch.softmax(scores, -1), group.values[layer]))
        return torch.cat(done)
