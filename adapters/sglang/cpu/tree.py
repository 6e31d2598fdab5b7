"""Draft trees: from the draft model's choices, or from an ancestor mask, to links and positions.

Nodes of a request's tree are numbered in order of depth-first discovery such that a parent comes
before its children; node 0 is the bonus token. "Links" are the first child and the next sibling of
each node, -1 for none. The module knows nothing of tokens' probabilities or of verification.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

FULL_MASK = 0
QLEN_ONLY = 1


def links_from_parents(
    parents: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First child and next sibling of every node.

    Args:
        parents: int64 ``[bs, n]``, the parent's node number, -1 for the root and unlinked nodes.

    Returns:
        ``(next_token, next_sibling)``, int64 ``[bs, n]``, -1 where there is none.
    """
    n = parents.shape[1]
    nodes = np.arange(n)
    linked = parents >= 0
    # child_of[b, p, c]: node c is a child of p. argmax finds the first, i.e. smallest, child.
    child_of = (parents[:, None, :] == nodes[None, :, None]) & linked[:, None, :]
    next_token = np.where(child_of.any(-1), child_of.argmax(-1), -1)
    later = nodes[None, :] > nodes[:, None]
    brother = (parents[:, :, None] == parents[:, None, :]) & linked[:, None, :] & later
    next_sibling = np.where(brother.any(-1) & linked, brother.argmax(-1), -1)
    return next_token, next_sibling


def _parents_of_selection(
    parent_list: NDArray[np.int64], selected: NDArray[np.int64], topk: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Parent node of nodes 1..n-1 (``[bs, n-1]``) and whether the parent was itself selected."""
    table = selected // topk
    at_root = table == 0
    if parent_list.shape[1] == 0 or selected.shape[1] == 0:
        return np.zeros_like(selected), at_root
    wanted = np.take_along_axis(parent_list, np.minimum(table, parent_list.shape[1] - 1), axis=1)
    match = selected[:, None, :] == wanted[:, :, None]
    found = match.any(-1)
    return np.where(at_root, 0, match.argmax(-1) + 1), at_root | found


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of every request's draft tree (the last five tensors).

    ``selected_index`` int64 ``[bs, n-1]`` are the chosen candidates, ascending; a candidate ``c``
    hangs below entry ``c // topk`` of ``parent_list`` int64 ``[bs, ...]`` (entry 0 is the root).
    ``tree_mask`` is a flat bool tensor: ``[bs, n, n]`` in mode 1 (QLEN_ONLY), or in mode 0
    (FULL_MASK) each request's ``[n, seq_len + n]`` one after another, of which only the last ``n``
    columns are written. Raises ValueError for the bit-packed mode, which no CPU backend reads.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(f"tree mask mode {tree_mask_mode} is not supported on the CPU")
    seq_lens = verified_seq_len.numpy().astype(np.int64)
    bs, n = len(seq_lens), draft_token_num
    if bs == 0:
        return
    selected = selected_index.numpy()[:, : n - 1].astype(np.int64)
    parent, known = _parents_of_selection(
        parent_list.numpy().astype(np.int64).reshape(bs, -1), selected, topk
    )
    sees = np.broadcast_to(np.eye(n, dtype=bool), (bs, n, n)).copy()
    sees[:, :, 0] = True
    node_depth = np.zeros((bs, n), dtype=np.int64)
    batch = np.arange(bs)
    for node in range(1, n):
        above = np.where(known[:, node - 1], parent[:, node - 1], 0)
        sees[:, node] |= sees[batch, above]
        node_depth[:, node] = node_depth[batch, above] + 1
    links = np.full((bs, n), -1, dtype=np.int64)
    links[:, 1:] = np.where(known, parent, -1)
    next_token, next_sibling = links_from_parents(links)
    positions.numpy()[: bs * n] = (seq_lens[:, None] + node_depth).reshape(-1)
    retrive_index.numpy()[:] = np.arange(bs * n).reshape(bs, n)
    retrive_next_token.numpy()[:] = next_token
    retrive_next_sibling.numpy()[:] = next_sibling
    _write_mask(tree_mask.numpy(), sees, seq_lens, tree_mask_mode)


def _write_mask(
    flat: NDArray[np.bool_], sees: NDArray[np.bool_], seq_lens: NDArray[np.int64], mode: int
) -> None:
    bs, n, _ = sees.shape
    if mode == QLEN_ONLY:
        flat[: bs * n * n] = sees.reshape(-1)
        return
    start = 0
    for row, length in enumerate(seq_lens.tolist()):
        end = start + n * (length + n)
        flat[start:end].reshape(n, length + n)[:, length:] = sees[row]
        start = end


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill positions and links (the four tensors in the middle) from ancestor masks.

    ``tree_mask`` flat bool ``[bs * n * n]``: entry ``[b, i, j]`` says that node ``j`` is an
    ancestor of node ``i`` (or is ``i`` itself); only ``j < i`` is read.
    """
    bs, n = batch_size, draft_token_num
    if bs == 0:
        return
    nodes = np.arange(n)
    mask = tree_mask.numpy().reshape(-1)[: bs * n * n].reshape(bs, n, n).astype(bool)
    ancestors = mask & (nodes[None, :] < nodes[:, None])
    parents = np.where(ancestors, nodes, -1).max(-1)
    # A first child is the smallest later node with this node among its ancestors: not only a direct
    # child counts, which matters for masks that are no closed tree.
    descendants = ancestors.transpose(0, 2, 1)
    next_token = np.where(descendants.any(-1), descendants.argmax(-1), -1)
    _, next_sibling = links_from_parents(parents)
    lengths = verified_seq_len.numpy().astype(np.int64)[:bs, None]
    positions.numpy()[: bs * n] = (lengths + ancestors.sum(-1)).reshape(-1)
    retrive_index.numpy()[:bs] = np.arange(bs * n).reshape(bs, n)
    retrive_next_token.numpy()[:bs] = next_token
    retrive_next_sibling.numpy()[:bs] = next_sibling
