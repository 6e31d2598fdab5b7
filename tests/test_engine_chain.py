"""Verify inputs for chains: the direct build equals SGLang's own, and padding is out of reach."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.engine  # imports SGLang; starts no server


MASKLESS = SimpleNamespace(verify_mask=None, max_context_len=64)
"""What is read of an attention backend that keeps no mask of its own."""


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    from hybridspec.adapters.sglang import cpu

    if cpu.needed():
        cpu.install()


@pytest.mark.parametrize("width", [1, 2, 5, 8, 32])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_direct_build_is_sglangs_own_tree_of_one_branch(width: int, rows: int) -> None:
    import torch
    from sglang.srt.speculative.eagle_utils import TreeMaskMode, build_tree_kernel_efficient

    from hybridspec.adapters.sglang.chain import ChainBuilder

    random = np.random.default_rng(width * 10 + rows)
    bonus = torch.from_numpy(random.integers(0, 100, rows))
    draft = torch.from_numpy(random.integers(0, 100, (rows, width - 1)))
    seq_lens = torch.from_numpy(random.integers(1, 50, rows))
    full = np.full(rows, width - 1, np.int32)
    built = ChainBuilder("cpu").build(bonus.int(), draft, full, seq_lens, None, MASKLESS)
    depth = torch.arange(max(width - 1, 1)).repeat(rows, 1)
    mask, positions, index, following, sibling, tokens = build_tree_kernel_efficient(
        bonus,
        depth - 1,
        depth[:, : width - 1],
        draft,
        seq_lens,
        int(seq_lens.sum()),
        1,
        width - 1,
        width,
        TreeMaskMode.QLEN_ONLY,
    )
    assert torch.equal(built.custom_mask, mask)
    assert torch.equal(built.positions, positions)
    assert torch.equal(built.retrieve_index, index)
    assert torch.equal(built.retrieve_next_token, following)
    assert torch.equal(built.retrieve_next_sibling, sibling)
    assert torch.equal(built.draft_token, tokens)
    assert (built.draft_token_num, built.spec_steps, built.topk) == (width, width - 1, 1)


def test_padding_is_never_accepted_even_where_it_is_right() -> None:
    import torch
    from sglang.srt.speculative.eagle_utils import verify_tree_greedy_func

    from hybridspec.adapters.sglang.chain import ChainBuilder

    width, lengths = 5, np.array([4, 2, 0], np.int32)
    # The target says 7 everywhere and so does every draft, padding included.
    draft = torch.full((3, width - 1), 7)
    built = ChainBuilder("cpu").build(
        torch.tensor([1, 2, 3]), draft, lengths, torch.tensor([9, 9, 9]), 27, MASKLESS
    )
    accepted = torch.empty(3, dtype=torch.int32)
    _, _, accepted = verify_tree_greedy_func(
        predicts=torch.zeros(3 * width, dtype=torch.int32),
        accept_index=torch.full((3, width), -1, dtype=torch.int32),
        accept_token_num=accepted,
        candidates=built.draft_token.view(3, width),
        retrieve_index=built.retrieve_index,
        retrieve_next_token=built.retrieve_next_token,
        retrieve_next_sibling=built.retrieve_next_sibling,
        target_predict=torch.full((3, width), 7),
        topk=1,
    )
    assert accepted.tolist() == lengths.tolist()


def test_every_sglang_name_that_we_rely_on_is_there() -> None:
    from hybridspec.adapters.sglang import compat

    assert compat.hook_problems() == []
    assert compat.version_problem(allow_untested=False) is None


def test_a_moved_or_changed_name_is_reported_by_path() -> None:
    from hybridspec.adapters.sglang.compat import Hook, hook_problems

    moved = Hook("sglang.srt.speculative.nowhere.Worker")
    changed = Hook("sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2", ("draft_with_magic",))
    first, second = hook_problems([moved, changed])
    assert "sglang.srt.speculative.nowhere" in first
    assert second.endswith("EAGLEWorkerV2: no longer offers draft_with_magic")
