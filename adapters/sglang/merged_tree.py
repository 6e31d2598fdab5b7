"""Verify inputs in which a row may have two branches: its cache draft and EAGLE3's.

Nodes of a row: the root (bonus) token, the cache draft, what of EAGLE3's draft the two do not
share, padding. A chain is the case of one branch. There are few shapes of such trees, so their
links and masks are looked up: a tree is a draft of three lengths (shared, cache, rest).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from hybridspec.adapters.sglang import tree_masks
from hybridspec.adapters.sglang.verify_input import verify_input

BRANCHES = 2
"""What SGLang takes for a tree's branching factor."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes of every row, int64 ``[rows, width]``, and what each may attend to.

    Attributes:
        tokens: node 0 is the root.
        depth: distance from the root.
        child: first child, -1 for none.
        sibling: next sibling, -1 for none.
        parent: -1 for the root; padding continues the chain before it.
        mask: bool ``[rows, width, width]``, the nodes that a node sees: its ancestors and itself.
    """

    tokens: torch.Tensor
    depth: torch.Tensor
    child: torch.Tensor
    sibling: torch.Tensor
    parent: torch.Tensor
    mask: torch.Tensor


class MergedTrees:
    """Joins chains under one root. Shapes are made at the first use of a width."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def merge(
        self,
        root: torch.Tensor,
        cache: torch.Tensor,
        cache_length: torch.Tensor,
        model: torch.Tensor,
        model_length: torch.Tensor,
    ) -> Tree:
        """Join two chains of every row; what both begin with is there once.

        Args:
            root: int64 ``[rows]``.
            cache: int64 ``[rows, width - 1]``, padded with any token.
            cache_length: int64 ``[rows]``, at most ``width - 1 - model_length``.
            model: int64 ``[rows, steps]``, ``steps < width``.
            model_length: int64 ``[rows]``, at most ``steps``.
        """
        width, steps = cache.shape[1] + 1, model.shape[1]
        key = width, steps
        if key not in self._shapes:
            links, mask = _shapes(width, steps)
            self._shapes[key] = links.to(root.device), mask.to(root.device)
        links, mask = self._shapes[key]
        alike = (cache[:, :steps] == model).long().cumprod(1).sum(1)
        shared = torch.minimum(alike, torch.minimum(cache_length, model_length))
        shape = (shared * width + cache_length) * (steps + 1) + model_length - shared
        of, depth, child, sibling, parent = links.index_select(1, shape)
        tokens = torch.cat((root[:, None], cache, model), dim=1).gather(1, of)
        return Tree(tokens, depth, child, sibling, parent, mask.index_select(0, shape))


def _shapes(width: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All trees of a width and at most ``steps`` tokens of EAGLE3's draft, numbered as in
    :meth:`MergedTrees.merge`.

    Returns:
        int64 ``[5, shapes, width]``: the place of each node's token among root, cache draft and
        EAGLE3's draft, and depth, child, sibling and parent as in :class:`Tree`; and its mask.
    """
    lengths = torch.cartesian_prod(
        torch.arange(steps + 1), torch.arange(width), torch.arange(steps + 1)
    )
    shared, first, tail = lengths.T[:, :, None]  # ``first``: the last node of the cache draft
    node = torch.arange(width)[None, :]
    last = first + tail
    in_tail = (node > first) & (node <= last)
    depth = torch.where(in_tail, shared + node - first, node)
    place = torch.where(in_tail, width + (depth - 1).clamp(0, steps - 1), node)
    goes_on = (node < first) | ((node > first) & (node < last))
    child = torch.where(goes_on, node + 1, -1)
    branches = tail > 0
    child = torch.where((node == first) & (shared == first) & branches, first + 1, child)
    sibling = torch.where((node == shared + 1) & (shared < first) & branches, first + 1, -1)
    parent = torch.where((node == first + 1) & branches, shared, node - 1)
    earlier = node[:, :, None] >= node[:, None, :]
    foreign = in_tail[:, :, None] & (node > shared)[:, None, :] & (node <= first)[:, None, :]
    return torch.stack((place, depth, child, sibling, parent)), earlier & ~foreign


def tree_input(
    tree: Tree, seq_lens: torch.Tensor, seq_lens_sum: int | None, backend: Any
) -> EagleVerifyInput:
    """What SGLang verifies.

    Args:
        tree: of every row.
        seq_lens: int64 ``[rows]``, committed tokens without the root.
        seq_lens_sum: their sum, where the host knows it.
        backend: the target's attention backend, for its mask.
    """
    if tree_masks.own(backend):
        mask, positions = tree.mask.reshape(-1), (seq_lens[:, None] + tree.depth).reshape(-1)
    else:
        numbering = tree_masks.Numbering.of(tree.parent)
        mask, positions = tree_masks.built(tree.tokens, numbering, seq_lens, seq_lens_sum, backend)
    return verify_input(tree.tokens, mask, positions, tree.child, tree.sibling, BRANCHES)
