"""Straightforward references for the CPU runtime's kernels: loops over requests and tokens."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Tree:
    """One request's draft tree: parent of each node (-1 for the root) and its token."""

    parents: list[int]
    tokens: list[int]

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def depth(self, node: int) -> int:
        return 0 if node == 0 else 1 + self.depth(self.parents[node])

    def sees(self, node: int, other: int) -> bool:
        """Whether ``other`` is ``node`` or one of its ancestors."""
        return node == other or (node > 0 and self.sees(self.parents[node], other))


def random_tree(rng: random.Random, nodes: int, vocabulary: int, chain: bool = False) -> Tree:
    parents = [-1] + [node - 1 if chain else rng.randrange(node) for node in range(1, nodes)]
    # Depth-first builders list parents before children, which this keeps; siblings differ.
    tree = Tree(parents, [rng.randrange(vocabulary)] * nodes)
    for node in range(nodes):
        free = list(range(vocabulary))
        rng.shuffle(free)
        for child in tree.children(node):
            tree.tokens[child] = free.pop()
    return tree


def links(trees: list[Tree]) -> tuple[Tensor, Tensor, Tensor]:
    """Flat index, first child and next sibling, int64 ``[bs, n]``."""
    n = len(trees[0].parents)
    index = torch.arange(len(trees) * n).view(-1, n)
    child = torch.full((len(trees), n), -1)
    sibling = torch.full((len(trees), n), -1)
    for row, tree in enumerate(trees):
        for node in range(n):
            children = tree.children(node)
            if children:
                child[row, node] = children[0]
            for one, following in itertools.pairwise(children):
                sibling[row, one] = following
    return index, child, sibling


def mask(trees: list[Tree]) -> Tensor:
    """Bool ``[bs, n, n]``: which nodes a node sees."""
    n = len(trees[0].parents)
    return torch.tensor([[[t.sees(i, j) for j in range(n)] for i in range(n)] for t in trees])


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: list[int],
    sees: Tensor,
    scale: float,
) -> Tensor:
    """One request: ``query`` ``[q, heads, dim]``, ``sees`` bool ``[q, len(slots)]``; float64."""
    group = query.shape[1] // keys.shape[1]
    out = torch.zeros(query.shape[0], query.shape[1], values.shape[-1], dtype=torch.float64)
    for i in range(query.shape[0]):
        for head in range(query.shape[1]):
            chosen = [slot for place, slot in enumerate(slots) if sees[i, place]]
            key = keys[chosen, head // group].double()
            scores = (key @ query[i, head].double()) * scale
            weights = torch.tensor([math.exp(s) for s in (scores - scores.max()).tolist()])
            value = values[chosen, head // group].double()
            out[i, head] = (weights.double() / weights.sum().double()) @ value
    return out.flatten(1)
