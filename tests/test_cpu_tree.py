"""Draft trees from the draft model's choices, and from masks, against recursive definitions."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import cpu_reference as ref
from hybridspec.adapters.sglang.cpu import tree


def _choices(
    rng: random.Random, topk: int, steps: int, nodes: int
) -> tuple[list[int], list[int], ref.Tree]:
    """A request's ``parent_list`` and chosen candidates in SGLang's layout, and the tree meant.

    Step 0 offers ``topk`` candidates below the root; step ``i`` offers ``topk`` below each of the
    ``topk`` best candidates of step ``i - 1``. A candidate's score is below its parent's.
    """
    scores = [rng.random() for _ in range(topk)]
    parent_of: list[int] = [-1] * topk
    parent_list = [-1]
    frontier = list(range(topk))
    for _ in range(1, steps):
        parent_list += frontier
        fresh = []
        for candidate in frontier:
            for _ in range(topk):
                fresh.append(len(scores))
                parent_of.append(candidate)
                scores.append(scores[candidate] * rng.random())
        frontier = sorted(fresh, key=lambda c: -scores[c])[:topk]
    chosen = sorted(sorted(range(len(scores)), key=lambda c: -scores[c])[: nodes - 1])
    node_of = {candidate: place + 1 for place, candidate in enumerate(chosen)}
    parents = [-1] + [0 if parent_of[c] < 0 else node_of[parent_of[c]] for c in chosen]
    return parent_list, chosen, ref.Tree(parents, [0] * nodes)


def _outputs(bs: int, n: int) -> list[Tensor]:
    return [torch.zeros(bs * n, dtype=torch.int64)] + [torch.full((bs, n), -1) for _ in range(3)]


@pytest.mark.parametrize("bs", [1, 3])
@pytest.mark.parametrize(
    ("topk", "steps", "nodes"), [(1, 1, 2), (1, 5, 6), (2, 3, 5), (4, 4, 16), (8, 3, 32)]
)
@pytest.mark.parametrize("mode", [tree.FULL_MASK, tree.QLEN_ONLY])
def test_tree_from_choices(bs: int, topk: int, steps: int, nodes: int, mode: int) -> None:
    rng = random.Random(bs * 1000 + topk * 100 + steps)
    made = [_choices(rng, topk, steps, nodes) for _ in range(bs)]
    trees = [m[2] for m in made]
    lengths = torch.tensor([rng.randrange(1, 9) for _ in range(bs)])
    parent_list = torch.tensor([m[0] for m in made])
    if steps == 1:
        parent_list = torch.empty(bs, 0, dtype=torch.int64)  # what SGLang passes then
    size = int(((lengths if mode == tree.FULL_MASK else 0 * lengths) + nodes).sum()) * nodes
    flat = torch.ones(size, dtype=torch.bool)
    positions, index, child, sibling = _outputs(bs, nodes)
    tree.build_tree_kernel_efficient_cpu(
        parent_list, torch.tensor([m[1] for m in made]), lengths, flat, positions, index, child,
        sibling, topk, steps, nodes, mode,
    )  # fmt: skip
    want = ref.links(trees)
    assert all(torch.equal(a, b) for a, b in zip((index, child, sibling), want, strict=True))
    depths = [[t.depth(i) for i in range(nodes)] for t in trees]
    assert torch.equal(positions.view(bs, nodes), torch.tensor(depths) + lengths[:, None])
    _check_mask(flat, ref.mask(trees), lengths, mode)


def _check_mask(flat: Tensor, sees: Tensor, lengths: Tensor, mode: int) -> None:
    n, start = sees.shape[1], 0
    for row, length in enumerate(lengths.tolist()):
        width = n + (length if mode == tree.FULL_MASK else 0)
        block = flat[start : start + n * width].view(n, width)
        assert torch.equal(block[:, width - n :], sees[row])
        assert bool(block[:, : width - n].all())
        start += n * width
    assert start == len(flat)


def test_empty_batch() -> None:
    none = torch.zeros(0, 3, dtype=torch.int64)
    flat = torch.zeros(0, dtype=torch.bool)
    lengths = torch.zeros(0, dtype=torch.int64)
    positions, index, child, sibling = _outputs(0, 4)
    tree.build_tree_kernel_efficient_cpu(
        none, none, lengths, flat, positions, index, child, sibling, 1, 3, 4, 1
    )
    tree.reconstruct_indices_from_tree_mask(flat, lengths, positions, index, child, sibling, 0, 4)


def test_bit_packed_masks_are_refused() -> None:
    one = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="mask mode 2"):
        tree.build_tree_kernel_efficient_cpu(
            one, one, one, one, one, one, one, one, topk=1, depth=1, draft_token_num=2,
            tree_mask_mode=2,
        )  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 2, 8, 24])
@pytest.mark.parametrize("chain", [False, True])
def test_tree_from_mask(nodes: int, chain: bool) -> None:
    rng = random.Random(nodes)
    trees = [ref.random_tree(rng, nodes, 50, chain) for _ in range(4)]
    lengths = torch.tensor([3, 1, 7, 2])
    # The buffers belong to a larger batch: what is behind the four rows must stay.
    positions, index, child, sibling = _outputs(6, nodes)
    tree.reconstruct_indices_from_tree_mask(
        ref.mask(trees).flatten(), lengths, positions, index, child, sibling, 4, nodes
    )
    want = ref.links(trees)
    for got, expected in zip((index, child, sibling), want, strict=True):
        assert torch.equal(got[:4], expected)
        assert bool((got[4:] == -1).all())
    depths = torch.tensor([[t.depth(i) for i in range(nodes)] for t in trees])
    assert torch.equal(positions.view(6, nodes)[:4], depths + lengths[:, None])
