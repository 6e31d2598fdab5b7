"""When draft-extend waits, and what the draft head is then brought up to date with."""

from __future__ import annotations

import pytest
import torch

from hybridspec.adapters.sglang.deferral import MOST_STEPS, MOST_TOKENS, Deferral, Extend
from hybridspec.adapters.sglang.draft_extend import _lacking, _Step


def test_it_waits_once_the_model_draft_is_out_of_use() -> None:
    deferral = Deferral(3, uses_model=True)
    assert [deferral.next(False, 1, 8) for _ in range(4)] == [Extend.NOW] * 3 + [Extend.LATER]
    assert deferral.behind
    assert deferral.next(True, 1, 8) is Extend.NOW
    assert not deferral.behind


def test_it_waits_sooner_with_more_rows() -> None:
    for rows, expected in ((1, 4), (2, 2), (8, 0)):
        deferral = Deferral(4, uses_model=True)
        done = [deferral.next(False, rows, 1) for _ in range(6)]
        assert done.index(Extend.LATER) == expected


def test_it_catches_up_now_and_then_and_goes_on_waiting() -> None:
    deferral = Deferral(1, uses_model=True)
    deferral.next(False, 1, 8)
    done = [deferral.next(False, 1, 8) for _ in range(3 * MOST_STEPS)]
    assert [at for at, when in enumerate(done) if when is Extend.NOW] == [
        MOST_STEPS - 1,
        2 * MOST_STEPS - 1,
        3 * MOST_STEPS - 1,
    ]


def test_what_waits_is_bounded_in_tokens() -> None:
    deferral = Deferral(1, uses_model=True)
    deferral.next(False, 1, 1)
    half = MOST_TOKENS // 2
    assert [deferral.next(False, half, 1) for _ in range(3)] == [
        Extend.LATER,
        Extend.LATER,
        Extend.NOW,
    ]


@pytest.mark.parametrize(("after", "expected"), [(16, Extend.NEVER), (0, Extend.NOW)])
def test_a_policy_without_model_drafts_needs_no_draft_head(after: int, expected: Extend) -> None:
    deferral = Deferral(after, uses_model=False)
    assert {deferral.next(False, 1, 8) for _ in range(100)} == {expected}
    assert not deferral.behind


def test_zero_never_waits() -> None:
    deferral = Deferral(0, uses_model=True)
    assert {deferral.next(False, 1, 8) for _ in range(100)} == {Extend.NOW}


def _waits(rids: str, width: int, starts: list[int], accepted: list[int]) -> _Step:
    tokens = torch.zeros(len(rids) * width)
    return _Step(
        tuple(rids), width, torch.tensor(starts), torch.tensor(accepted), tokens, tokens[:, None]
    )


def test_rows_lack_what_they_accepted_since_the_first_step_that_waits() -> None:
    steps = [
        _waits("ab", 4, [10, 20], [3, 1]),
        _waits("ba", 1, [21, 13], [1, 1]),  # the rows changed places
    ]
    starts, lengths, places = _lacking(steps)
    assert starts == [20, 10]
    assert lengths == [2, 4]
    assert places == [[4, 8], [0, 1, 2, 9]]


def test_rows_that_join_leave_or_are_prefilled_again() -> None:
    steps = [
        _waits("abc", 2, [10, 20, 30], [2, 1, 1]),
        _waits("cdb", 2, [50, 5, 21], [1, 2, 2]),  # a ended, d came, c was prefilled meanwhile
    ]
    starts, lengths, places = _lacking(steps)
    assert starts == [50, 5, 20]
    assert lengths == [1, 2, 3]
    assert places == [[6], [8, 9], [2, 10, 11]]
