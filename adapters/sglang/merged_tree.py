"""Verify inputs in which a row may have two branches: its cache draft and EAGLE3's.

Nodes of a row: the root (bonus) token, the cache draft, what of EAGLE3's draft the two do not
share, padding. A chain is the case of one branch. All rows are built in one pass over small arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from hybridspec.adapters.sglang import tree_masks

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


def merge(
    root: torch.Tensor,
    cache: torch.Tensor,
    cache_length: torch.Tensor,
    model: torch.Tensor,
    model_length: torch.Tensor,
) -> Tree:
    """Join two chains under one root; what both begin with is there once.

    Args:
        root: int64 ``[rows]``.
        cache: int64 ``[rows, width - 1]``, padded with any token.
        cache_length: int64 ``[rows]``, at most ``width - 1 - model_length``.
        model: int64 ``[rows, steps]``, ``steps < width``.
        model_length: int64 ``[rows]``, at most ``steps``.
    """
    width = cache.shape[1] + 1
    node = torch.arange(width, device=root.device)[None, :]
    steps = model.shape[1]
    alike = (cache[:, :steps] == model) & (node[:, :steps] < cache_length[:, None])
    alike &= node[:, :steps] < model_length[:, None]
    shared = alike.long().cumprod(1).sum(1, keepdim=True)
    tail = model_length[:, None] - shared
    first = cache_length[:, None]  # the last node of the cache draft
    last = first + tail
    in_tail = (node > first) & (node <= last)
    depth = torch.where(in_tail, shared + node - first, node)
    tokens = torch.cat((root[:, None], cache), dim=1)
    place = (depth - 1).clamp(0, steps - 1).expand(tokens.shape[0], -1)
    tokens = torch.where(in_tail, model.gather(1, place), tokens)
    goes_on = (node < first) | ((node > first) & (node < last))
    child = torch.where(goes_on, node + 1, -1)
    branches = tail > 0
    child = torch.where((node == first) & (shared == first) & branches, first + 1, child)
    sibling = torch.where((node == shared + 1) & (shared < first) & branches, first + 1, -1)
    parent = torch.where((node == first + 1) & branches, shared, node - 1)
    earlier = node[:, :, None] >= node[:, None, :]
    foreign = in_tail[:, :, None] & (node > shared)[:, None, :] & (node <= first)[:, None, :]
    return Tree(tokens, depth, child, sibling, parent, earlier & ~foreign)


def verify_input(
    tree: Tree, seq_lens: torch.Tensor, seq_lens_sum: int | None, backend: Any
) -> EagleVerifyInput:
    """What SGLang verifies.

    Args:
        tree: of every row.
        seq_lens: int64 ``[rows]``, committed tokens without the root.
        seq_lens_sum: their sum, where the host knows it.
        backend: the target's attention backend, for its mask.
    """
    rows, width = tree.tokens.shape
    if tree_masks.own(backend):
        mask, positions = tree.mask.reshape(-1), (seq_lens[:, None] + tree.depth).reshape(-1)
    else:
        mask, positions, *_ = tree_masks.built(
            tree.tokens, tree.parent, seq_lens, seq_lens_sum, backend
        )
    return EagleVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        custom_mask=mask,
        positions=positions,
        retrieve_index=torch.arange(rows * width, device=seq_lens.device).view(rows, width),
        retrieve_next_token=tree.child,
        retrieve_next_sibling=tree.sibling,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=BRANCHES,
        draft_token_num=width,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
