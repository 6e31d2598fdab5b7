"""Greedy and sampled verification against walks in plain Python, and against the distribution."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

import cpu_reference as ref
from hybridspec.adapters.sglang.cpu import sampling, verify

VOCABULARY = 6


def _walk(trees: list[ref.Tree], target: Tensor, depth: int) -> list[list[int]]:
    """Accepted nodes of every request, the root first."""
    paths = []
    for row, tree in enumerate(trees):
        path = [0]
        while len(path) < depth:
            want = int(target[row, path[-1]])
            hits = [c for c in tree.children(path[-1]) if tree.tokens[c] == want]
            if not hits:
                break
            path.append(hits[0])
        paths.append(path)
    return paths


@pytest.mark.parametrize("bs", [0, 1, 5])
@pytest.mark.parametrize("nodes", [1, 4, 16])
@pytest.mark.parametrize("chain", [False, True])
def test_greedy(bs: int, nodes: int, chain: bool) -> None:
    rng = random.Random(bs + nodes)
    for depth in (1, 3, nodes):
        trees = [ref.random_tree(rng, nodes, VOCABULARY * 3, chain) for _ in range(bs)]
        tokens = torch.tensor([t.tokens for t in trees]).view(bs, nodes)
        target = torch.randint(0, VOCABULARY * 3, (bs, nodes))
        for row, tree in enumerate(trees):  # make long matches likely
            for node in range(1, nodes):
                if rng.random() < 0.7:
                    target[row, tree.parents[node]] = tree.tokens[node]
        index, child, sibling = (
            ref.links(trees) if bs else (torch.zeros(0, nodes, dtype=torch.int64),) * 3
        )
        predicts = torch.zeros(bs * nodes, dtype=torch.int32)
        path = torch.full((bs, depth), -1, dtype=torch.int32)
        lengths = torch.zeros(bs, dtype=torch.int32)
        verify.verify_tree_greedy_cpu(
            predicts, path, lengths, tokens, index, child, sibling, target
        )
        for row, nodes_taken in enumerate(_walk(trees, target, depth)):
            flat = [row * nodes + node for node in nodes_taken]
            assert path[row].tolist() == flat + [-1] * (depth - len(flat))
            assert int(lengths[row]) == len(flat) - 1
            assert predicts[flat].tolist() == target.flatten()[flat].tolist()


def _sampled(
    trees: list[ref.Tree], probs: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    bs, nodes = len(trees), len(trees[0].parents)
    tokens = torch.tensor([t.tokens for t in trees])
    index, child, sibling = ref.links(trees)
    predicts = torch.zeros(bs * nodes, dtype=torch.int32)
    path = torch.full((bs, nodes), -1, dtype=torch.int32)
    lengths = torch.zeros(bs, dtype=torch.int32)
    sampling.tree_speculative_sampling_target_only(
        predicts, path, lengths, tokens, index, child, sibling,
        torch.rand(bs, nodes, generator=generator), torch.rand(bs, generator=generator),
        probs, None,
    )  # fmt: skip
    return predicts.view(bs, nodes), path, lengths


def _emitted(predicts: Tensor, path: Tensor, lengths: Tensor, row: int) -> list[int]:
    nodes = predicts.shape[1]
    taken = path[row, : int(lengths[row]) + 1].tolist()
    return [int(predicts[row, node - row * nodes]) for node in taken]


@pytest.mark.parametrize("chain", [False, True])
def test_sampled_first_token_has_the_target_distribution(chain: bool) -> None:
    rng = random.Random(5)
    generator = torch.Generator().manual_seed(5)
    tree = ref.random_tree(rng, 5, VOCABULARY, chain)
    rows = 6000
    probs = torch.rand(5, VOCABULARY, generator=generator).pow(2)  # not normalised on purpose
    probs[:, 1] = 0.0
    outcome = _sampled([tree] * rows, probs.expand(rows, -1, -1), generator)
    first = torch.tensor([_emitted(*outcome, row)[0] for row in range(rows)])
    share = torch.bincount(first, minlength=VOCABULARY) / rows
    want = probs[0] / probs[0].sum()
    # Five standard deviations of a binomial share.
    assert bool(((share - want).abs() <= 5 * (want * (1 - want) / rows).sqrt()).all())
    assert share[1] == 0


def test_sampled_second_token_has_the_target_distribution() -> None:
    generator = torch.Generator().manual_seed(6)
    tree = ref.Tree([-1, 0, 1], [0, 3, 2])  # a chain: 3, then 2
    rows = 6000
    probs = torch.rand(3, VOCABULARY, generator=generator)
    probs[0, 3] = 3.0  # often accepted
    outcome = _sampled([tree] * rows, probs.expand(rows, -1, -1), generator)
    emitted = [_emitted(*outcome, row) for row in range(rows)]
    second = torch.tensor([e[1] for e in emitted if e[0] == 3])
    share = torch.bincount(second, minlength=VOCABULARY) / len(second)
    want = probs[1] / probs[1].sum()
    assert bool(((share - want).abs() <= 5 * (want * (1 - want) / len(second)).sqrt()).all())


def test_sampled_path_is_consistent() -> None:
    rng = random.Random(7)
    generator = torch.Generator().manual_seed(7)
    trees = [ref.random_tree(rng, 12, VOCABULARY) for _ in range(40)]
    probs = torch.rand(40, 12, VOCABULARY, generator=generator).pow(4)
    predicts, path, lengths = _sampled(trees, probs, generator)
    for row, tree in enumerate(trees):
        nodes = [n - row * 12 for n in path[row].tolist() if n >= 0]
        assert len(nodes) == int(lengths[row]) + 1
        for above, below in itertools.pairwise(nodes):
            assert tree.parents[below] == above
            assert int(predicts[row, above]) == tree.tokens[below]
        bonus = int(predicts[row, nodes[-1]])
        children = tree.children(nodes[-1])
        assert bonus not in [tree.tokens[c] for c in children]


def test_certain_target_accepts_exactly_its_token() -> None:
    tree = ref.Tree([-1, 0, 1], [0, 3, 2])
    probs = torch.zeros(1, 3, VOCABULARY)
    probs[0, 0, 3] = probs[0, 1, 5] = probs[0, 2, 1] = 1.0
    predicts, path, lengths = _sampled([tree], probs, torch.Generator().manual_seed(1))
    assert _emitted(predicts, path, lengths, 0) == [3, 5]


def test_sampling_of_an_empty_batch() -> None:
    none = torch.zeros(0, 4, dtype=torch.int64)
    sampling.tree_speculative_sampling_target_only(
        torch.zeros(0, dtype=torch.int32), none.int(), torch.zeros(0, dtype=torch.int32), none,
        none, none, none, torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, 4, 9), None,
    )  # fmt: skip


@pytest.mark.parametrize("coin", [0.0, 0.25, 1 - 2**-24])
def test_inverse_sampling_never_takes_a_zero_weight(coin: float) -> None:
    weights = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.75, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1e-30]])
    got = sampling.sample_rows(weights, torch.tensor([coin, coin]))
    assert got.tolist() == [2 if coin < 0.25 else 4, 5]


def test_filters() -> None:
    generator = torch.Generator().manual_seed(3)
    probs = torch.rand(4, 900, generator=generator).pow(3)
    probs /= probs.sum(-1, keepdim=True)
    top_ks = torch.tensor([1, 5, 900, 1 << 30])
    top_ps = torch.tensor([0.0, 0.3, 0.999, 1.0])
    kept = sampling.top_p_filter(sampling.top_k_filter(probs, top_ks), top_ps)
    for row in range(4):
        order = sorted(range(900), key=lambda token: -float(probs[row, token]))
        total, want = 0.0, set[int]()
        for rank, token in enumerate(order):
            if rank < int(top_ks[row]) and (rank == 0 or total <= float(top_ps[row])):
                want.add(token)
            total += float(probs[row, token])
        got = set(kept[row].nonzero().flatten().tolist())
        # At the border a rounding error may keep or drop one very unlikely token.
        assert len(got ^ want) <= (1 if row == 2 else 0)
        assert torch.equal(kept[row][list(got)], probs[row][list(got)])


def test_filters_of_nothing() -> None:
    nothing = torch.zeros(0, 5)
    assert sampling.top_k_filter(nothing, torch.zeros(0, dtype=torch.int64)).shape == (0, 5)
    assert sampling.top_p_filter(nothing, torch.zeros(0)).shape == (0, 5)


def _murmur(blocks: list[int]) -> int:
    state = 0
    for block in blocks:
        block = (block * 0xCC9E2D51) & 0xFFFFFFFF
        block = ((block << 15) | (block >> 17)) & 0xFFFFFFFF
        block = (block * 0x1B873593) & 0xFFFFFFFF
        state ^= block
        state = ((state << 13) | (state >> 19)) & 0xFFFFFFFF
        state = (state * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= 4 * len(blocks)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = ((state ^ (state >> shift)) * factor) & 0xFFFFFFFF
    return state


def test_murmur_hash() -> None:
    seeds = torch.tensor([0, 7, 2**40 + 3, 2**63 - 1], dtype=torch.uint64)
    places = torch.tensor([0, 5, 100000, 1], dtype=torch.uint64)
    got = sampling.murmur_hash32_cpu(seeds, places, torch.arange(5))
    assert got.dtype == torch.uint32
    for row in range(4):
        for column in range(5):
            seed, place = int(seeds[row]), int(places[row])
            want = _murmur([seed & 0xFFFFFFFF, seed >> 32, place, column])
            assert int(got[row, column]) == want
