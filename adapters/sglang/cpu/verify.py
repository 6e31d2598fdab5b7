"""Greedy verification: how far the target's argmax follows each request's draft tree.

Knows nothing of probabilities (see ``sampling``) or of where drafts come from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.signedinteger[Any]]


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk every tree from its root along children that equal the target's prediction.

    Shapes: ``candidates``, ``retrive_*``, ``target_predict`` int ``[bs, n]``; the mutated ones are
    ``predicts`` int32 ``[bs * n]`` (the target's token at every accepted node), ``accept_index``
    int32 ``[bs, depth]`` (flat numbers of the accepted nodes, the root first; the rest keeps its
    -1) and ``accept_token_num`` int32 ``[bs]`` (accepted length: draft tokens, bonus excluded).
    The loops run over depth and siblings, for all requests at once.
    """
    tokens, index = candidates.numpy(), retrive_index.numpy()
    child, sibling = retrive_next_token.numpy(), retrive_next_sibling.numpy()
    target = target_predict.numpy().reshape(-1)
    out, path = predicts.numpy(), accept_index.numpy()
    bs, depth = path.shape
    rows = np.arange(bs)
    node = np.zeros(bs, dtype=np.int64)
    length = np.zeros(bs, dtype=np.int64)
    if bs:
        path[:, 0] = index[:, 0]
    live = rows
    for level in range(1, depth):
        want = target[index[live, node[live]]]
        options = child[live, node[live]]
        options = _matching_sibling(options, want, tokens, sibling, live)
        hit = options >= 0
        live, options, want = live[hit], options[hit], want[hit]
        if not len(live):
            break
        out[index[live, node[live]]] = want
        node[live] = options
        length[live] += 1
        path[live, level] = index[live, options]
    last = index[rows, node]
    out[last] = target[last]
    accept_token_num.numpy()[:bs] = length


def _matching_sibling(options: Ints, want: Ints, tokens: Ints, sibling: Ints, rows: Ints) -> Ints:
    """First node among each option and its later siblings that holds the wanted token, else -1."""
    while True:
        wrong = (options >= 0) & (tokens[rows, options] != want)
        if not wrong.any():
            return options
        options = np.where(wrong, sibling[rows, options], options)
