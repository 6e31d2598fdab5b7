"""Two drafts in one verify tree: against a plain reference, and on the real server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_metrics import counters
from engine_servers import EngineServers, generate, post_all

pytestmark = pytest.mark.engine  # imports SGLang


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    from hybridspec.adapters.sglang import cpu

    if cpu.needed():
        cpu.install()


class Backend:
    """What is read of an attention backend: one that takes a mask of the draft alone, as the
    portable one does, or one of another mode."""

    def __init__(self, mode: int | None = None) -> None:
        self.verify_mask = None
        if mode is not None:
            self.verify_mask = SimpleNamespace(
                mode=mode, buffer=None, fits=lambda rows: False, is_read=True
            )


Node = tuple[int, int, int]
"""Token, depth, parent."""


def reference(root: int, cache: list[int], model: list[int], width: int) -> list[Node]:
    """The nodes of one row, one by one."""
    shared = 0
    while shared < min(len(cache), len(model)) and cache[shared] == model[shared]:
        shared += 1
    nodes = [(root, 0, -1)]
    nodes += [(token, at + 1, at) for at, token in enumerate(cache)]
    for at in range(shared, len(model)):
        parent = shared if at == shared else len(nodes) - 1
        nodes.append((model[at], at + 1, parent))
    assert len(nodes) <= width
    return nodes


def pairs(width: int, steps: int, rows: int) -> list[tuple[list[int], list[int]]]:
    """Chains that are equal, nested, diverge anywhere, are empty or fill the width."""
    random = np.random.default_rng(width * 100 + steps)
    full, model = [1] * (width - 1), [1] * steps
    made: list[tuple[list[int], list[int]]] = [
        ([], []),
        (full, []),
        ([], model),
        (full[steps:], model),
        ([2] * (width - 1 - steps), model),
        (full[1:], [1]),
        (full[1:], [2]),
        (model[: width - 1 - steps], model),
    ]
    while len(made) < rows:
        cache = random.integers(0, 3, random.integers(0, width)).tolist()
        model = random.integers(0, 3, random.integers(0, steps + 1)).tolist()
        if random.random() < 0.4:
            common = int(random.integers(0, steps + 1))
            model = [*cache[:common], *model][:steps]
        made.append((cache[: width - 1 - len(model)], model))
    return made


def merged(rows: list[tuple[list[int], list[int]]], width: int, steps: int) -> Any:
    """Their trees; the roots are 100, 101, ..."""
    import torch

    from hybridspec.adapters.sglang.merged_tree import MergedTrees

    def padded(chains: list[list[int]], most: int) -> torch.Tensor:
        return torch.tensor([[*chain, *[9] * (most - len(chain))] for chain in chains])

    return MergedTrees().merge(
        torch.arange(100, 100 + len(rows)),
        padded([cache for cache, _ in rows], width - 1),
        torch.tensor([len(cache) for cache, _ in rows]),
        padded([model for _, model in rows], steps),
        torch.tensor([len(model) for _, model in rows]),
    )


@pytest.mark.parametrize(("width", "steps"), [(2, 1), (4, 1), (5, 3), (8, 3), (32, 3), (8, 7)])
def test_trees_equal_a_plain_reference(width: int, steps: int) -> None:
    rows = pairs(width, steps, 60)
    tree = merged(rows, width, steps)
    for row, (cache, model) in enumerate(rows):
        nodes = reference(100 + row, cache, model, width)
        count = len(nodes)
        assert tree.tokens[row, :count].tolist() == [token for token, _, _ in nodes]
        assert tree.depth[row, :count].tolist() == [depth for _, depth, _ in nodes]
        child, sibling = tree.child[row].tolist(), tree.sibling[row].tolist()
        for at in range(width):
            children = [index for index, (_, _, parent) in enumerate(nodes) if parent == at]
            found, place = [], child[at]
            while place >= 0:
                found.append(place)
                place = sibling[place]
            assert found == children
            if at >= count:
                continue
            seen, place = set(), at
            while place >= 0:
                seen.add(place)
                place = nodes[place][2]
            assert set(tree.mask[row, at].nonzero().flatten().tolist()) == seen
        assert tree.mask[row].diagonal().all()  # padding sees something


def test_the_longer_agreeing_branch_is_accepted() -> None:
    import torch
    from sglang.srt.speculative.eagle_utils import verify_tree_greedy_func

    from hybridspec.adapters.sglang.merged_tree import BRANCHES, tree_input

    width, steps = 8, 3
    rows = pairs(width, steps, 80)
    random = np.random.default_rng(5)
    truth = random.integers(0, 3, (len(rows), width + 1))
    for row, (cache, model) in enumerate(rows):  # some follow one draft, some the other
        chosen = (cache, model, [])[row % 3]
        truth[row, : len(chosen)] = chosen

    tree = merged(rows, width, steps)
    built = tree_input(tree, torch.full((len(rows),), 7), None, Backend())
    target = torch.from_numpy(truth).gather(1, tree.depth.clamp(max=width)).int()
    _, _, accepted = verify_tree_greedy_func(
        predicts=torch.zeros(len(rows) * width, dtype=torch.int32),
        accept_index=torch.full((len(rows), width), -1, dtype=torch.int32),
        accept_token_num=torch.empty(len(rows), dtype=torch.int32),
        candidates=built.draft_token.view(len(rows), width),
        retrieve_index=built.retrieve_index,
        retrieve_next_token=built.retrieve_next_token,
        retrieve_next_sibling=built.retrieve_next_sibling,
        target_predict=target.long(),
        topk=BRANCHES,
    )
    for row, (cache, model) in enumerate(rows):

        def agreeing(draft: list[int], row: int = row) -> int:
            count = 0
            while count < len(draft) and draft[count] == truth[row, count]:
                count += 1
            return count

        assert int(accepted[row]) == max(agreeing(cache), agreeing(model)), (row, cache, model)


@pytest.mark.parametrize(("width", "steps"), [(2, 1), (5, 3), (8, 3), (16, 7)])
def test_sglangs_own_builder_makes_the_same_trees(width: int, steps: int) -> None:
    import torch
    from sglang.srt.speculative.eagle_utils import TreeMaskMode

    from hybridspec.adapters.sglang.merged_tree import tree_input

    rows = pairs(width, steps, 30)
    tree = merged(rows, width, steps)
    seq_lens = torch.from_numpy(np.random.default_rng(3).integers(1, 20, len(rows)))
    ours = tree_input(tree, seq_lens, None, Backend())
    mask = ours.custom_mask.view(len(rows), width, width)
    for mode in (TreeMaskMode.QLEN_ONLY, TreeMaskMode.FULL_MASK):
        theirs = tree_input(tree, seq_lens, int(seq_lens.sum()), Backend(mode))
        assert torch.equal(theirs.draft_token, ours.draft_token)
        start = 0
        for row, length in enumerate(seq_lens.tolist()):
            used = len(reference(100 + row, *rows[row], width))
            before = length if mode == TreeMaskMode.FULL_MASK else 0
            end = start + width * (before + width)
            part = theirs.custom_mask[start:end].view(width, before + width)
            assert part[:, :before].all()
            assert torch.equal(part[:used, before:], mask[row, :used])
            at = slice(row * width, row * width + used)
            assert torch.equal(theirs.positions[at], ours.positions[at])
            start = end


@pytest.mark.parametrize("kind", ["tree", "chain"])
def test_sglangs_own_builder_is_given_whole_arrays(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import torch
    from sglang.srt.speculative.eagle_utils import TreeMaskMode, build_tree_kernel_efficient

    from hybridspec.adapters.sglang import tree_masks
    from hybridspec.adapters.sglang.chain import ChainBuilder
    from hybridspec.adapters.sglang.merged_tree import tree_input

    given: list[torch.Tensor] = []

    def watched(*args: Any) -> Any:
        given.extend(args[1:3])
        return build_tree_kernel_efficient(*args)

    monkeypatch.setattr(tree_masks, "build_tree_kernel_efficient", watched)
    seq_lens, backend = torch.tensor([3, 4, 5]), Backend(TreeMaskMode.FULL_MASK)
    if kind == "tree":
        tree_input(merged(pairs(8, 3, 8)[:3], 8, 3), seq_lens, 12, backend)
    else:
        lengths, draft = np.full(3, 7, np.int32), torch.arange(21).view(3, 7)
        ChainBuilder("cpu").build(torch.tensor([1, 2, 3]), draft, lengths, seq_lens, 12, backend)
    # A CUDA kernel reads rows one after the other, whatever the strides say.
    assert len(given) == 2
    assert all(array.is_contiguous() and len(array) == 3 for array in given)


def test_backends_that_verify_chains_alone_are_known() -> None:
    from hybridspec.adapters.sglang.branches import problem

    assert problem(("triton", "flashinfer"), 1) is None
    assert problem(("portable",), 1) is None
    assert "fa3 verifies chains alone" in (problem(("triton", "fa3"), 1) or "")
    assert "page size" in (problem(("triton",), 16) or "")


def test_both_branches_win_and_the_text_stays(
    engine: EngineServers, prompts: list[list[int]], plain_text: list[list[int]]
) -> None:
    server = engine("both")
    before = counters(server)
    assert before["merges",] == 1
    answers = generate(server, prompts, 32, concurrency=8)
    assert answers == [ids[:32] for ids in plain_text]
    after = counters(server)
    for won in ("cache", "model", "none"):
        assert after["merged_rows", won] - before["merged_rows", won] > 20
    assert after["fallbacks",] == before["fallbacks",]


def test_log_probabilities_under_both_branches_are_plain_decodings(
    engine: EngineServers, prompts: list[list[int]]
) -> None:
    bodies = [
        {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        for prompt in prompts[::3]
    ]
    told = [
        [reply.json()["meta_info"] for reply in post_all(engine(name), bodies)]
        for name in ("plain", "both")
    ]
    for plain, ours in zip(*told, strict=True):
        for name in ("output_token_logprobs", "output_top_logprobs"):
            expected, found = np.array(_numbers(plain[name])), np.array(_numbers(ours[name]))
            assert found == pytest.approx(expected, abs=1e-4)


def _numbers(value: object) -> list[float]:
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []
