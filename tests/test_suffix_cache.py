"""The suffix cache: drafts, scopes, life of a request, byte budget."""

from __future__ import annotations

import numpy as np
import pytest

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.adapters.suffix.shared import BYTES_PER_TOKEN
from hybridspec.adapters.suffix.tokens import TokenBuffer, as_int32
from hybridspec.gate.observations import Observations

PHRASE = list(range(100, 140))


def draft(cache: SuffixCache, rid: str, most: int) -> list[int]:
    """The tokens of one request's draft."""
    obs = draft_rows(cache, [rid], most)
    return [int(token) for token in obs.tokens[0, : obs.length[0]]]


def draft_rows(cache: SuffixCache, rids: list[str], most: int) -> Observations:
    rows = Observations.allocate(len(rids), 64)
    cache.draft(rids, rows, most)
    return rows


def test_own_text_is_continued() -> None:
    cache = SuffixCache()
    cache.start("a", [1, *PHRASE, 2, 3, *PHRASE[:8]])
    rows = draft_rows(cache, ["a"], 16)
    assert rows.length.tolist() == [16]
    assert rows.tokens[0].tolist() == [*PHRASE[8:24], *[-1] * 48]
    assert (np.diff(rows.probs[0]) <= 0).all()
    assert not rows.probs[0, 16:].any()
    assert rows.score[0] == pytest.approx(float(rows.probs.sum()), rel=1e-5)
    assert rows.match_length.tolist() == [8]
    assert not rows.shared[0]


def test_finished_response_is_shared_but_a_prompt_is_not() -> None:
    cache = SuffixCache()
    cache.start("a", [1, 2, 3])
    cache.extend("a", PHRASE)
    cache.finish("a")
    cache.start("b", [7, 8, *PHRASE[:5]])
    rows = draft_rows(cache, ["b"], 8)
    assert rows.shared[0]
    assert rows.tokens[0, :8].tolist() == PHRASE[5:13]
    cache.start("c", [1, 2])
    assert len(draft(cache, "c", 8)) == 0


def test_responses_are_shared_while_they_are_written() -> None:
    cache = SuffixCache()
    cache.start("a", [1, 2, 3])
    cache.start("b", [4, 5, *PHRASE[:4]])
    cache.extend("a", np.array(PHRASE, np.int64))
    assert draft(cache, "b", 4) == PHRASE[4:8]


def test_scopes_share_nothing() -> None:
    cache = SuffixCache()
    cache.start("a", [1], scope="x")
    cache.extend("a", PHRASE)
    cache.finish("a")
    for scope in ("y", None):
        cache.start("b", [8, *PHRASE[:5]], scope=scope)
        assert len(draft(cache, "b", 8)) == 0
    cache.start("b", [8, *PHRASE[:5]], scope="x")
    assert draft_rows(cache, ["b"], 8).shared[0]


def test_draft_length_limits() -> None:
    cache = SuffixCache(max_depth=64, max_spec_factor=4.0)
    long = list(range(1000, 1200))
    cache.start("a", [*long, 1, *long[:2]])
    assert len(draft(cache, "a", 64)) == 8  # four tokens per matched token
    cache.start("b", [*long, 1, *long[:12]])
    assert 40 <= len(draft(cache, "b", 64)) <= 52
    assert len(draft(cache, "b", 3)) == 3
    assert draft(cache, "b", 0) == []


def test_unknown_requests_are_harmless() -> None:
    cache = SuffixCache()
    assert draft(cache, "nobody", 8) == []
    cache.extend("nobody", [1, 2])
    cache.finish("nobody")
    cache.discard("nobody")
    assert cache.stats.active_requests == 0


def test_an_aborted_response_does_not_stay() -> None:
    cache = SuffixCache()
    cache.start("a", [1, 2, 3])
    cache.extend("a", PHRASE)
    cache.discard("a")
    cache.start("b", [7, 8, *PHRASE[:5]])
    assert len(draft(cache, "b", 8)) == 0
    assert cache.stats.cached_responses == 0


@pytest.mark.parametrize("held", [0, 3, 10])
def test_readmission_with_more_text_only_adds(held: int) -> None:
    prompt = [1, *PHRASE, 2]
    output = [50, 51, 52, *PHRASE[:7]]
    plain, cache = SuffixCache(), SuffixCache()
    plain.start("a", prompt)
    plain.extend("a", output)
    cache.start("a", prompt)
    cache.extend("a", output[:held])
    cache.start("a", prompt + output)
    assert draft(cache, "a", 16) == draft(plain, "a", 16)
    assert cache.stats.bytes == plain.stats.bytes
    assert cache.stats.active_requests == 1


def test_readmission_with_less_or_other_text_replaces() -> None:
    cache = SuffixCache()
    cache.start("a", [1, 2, 3])
    cache.extend("a", PHRASE)
    cache.start("a", [1, 2, 3])  # back to the prompt alone
    assert cache.stats.bytes == 3 * BYTES_PER_TOKEN
    cache.extend("a", [9, 9, 5, 6, 9, 9])
    assert draft(cache, "a", 2)[:1] == [5]
    cache.start("a", [4, *PHRASE, *PHRASE[:6]])
    assert draft(cache, "a", 4) == PHRASE[6:10]
    cache.start("a", [4, *PHRASE, *PHRASE[:6]], scope="other")
    assert cache.stats.scopes == 1


def test_a_reused_id_is_a_new_request() -> None:
    cache = SuffixCache()
    for _ in range(3):
        cache.start("a", [1, 2, 3])
        cache.extend("a", PHRASE)
        cache.finish("a")
    assert cache.stats.cached_responses == 3


def test_flush_forgets_and_running_requests_go_on() -> None:
    cache = SuffixCache()
    cache.start("old", [1])
    cache.extend("old", PHRASE)
    cache.finish("old")
    cache.start("a", [1, *PHRASE, 2])
    cache.start("b", [5, 6])
    cache.flush()
    assert cache.stats.bytes == 0
    cache.extend("a", PHRASE[:6])
    rows = draft_rows(cache, ["a"], 4)
    assert rows.tokens[0, :4].tolist() == PHRASE[6:10]
    assert not rows.shared[0]
    cache.finish("b")  # never used again after the flush
    cache.finish("a")
    cache.start("c", [9, *PHRASE[:6]])
    assert len(draft(cache, "c", 4)) == 0  # only the six tokens after the flush are shared
    cache.flush()
    cache.start("c", [9, *PHRASE[:6], 1])
    cache.discard("c")
    assert cache.stats.bytes == 0
    assert cache.stats.scopes == 0


def test_budget_evicts_oldest_response_of_least_recent_scope() -> None:
    cache = SuffixCache(budget_bytes=200 * BYTES_PER_TOKEN)
    for i in range(20):
        rid = f"r{i}"
        cache.start(rid, [1, 2], scope=i % 2)
        cache.extend(rid, [1000 * i + k for k in range(30)])
        cache.finish(rid)
        assert cache.stats.bytes <= cache.stats.budget_bytes
    assert cache.stats.evictions >= 12
    cache.start("new", [19000, 19001, 19002], scope=1)
    assert len(draft(cache, "new", 4)) == 4
    cache.start("old", [1000, 1001, 1002], scope=1)
    assert len(draft(cache, "old", 4)) == 0


def test_budget_holds_for_running_requests() -> None:
    cache = SuffixCache(budget_bytes=100 * BYTES_PER_TOKEN)
    cache.start("a", list(range(500)) + list(range(440, 450)))
    assert cache.stats.bytes <= cache.stats.budget_bytes
    assert draft(cache, "a", 4) == [450, 451, 452, 453]  # the end was indexed
    for _ in range(50):
        cache.extend("a", [7, 8, 9])
    cache.start("b", [1, 2, 3])
    cache.extend("b", [1, 2])
    assert cache.stats.bytes <= cache.stats.budget_bytes
    assert cache.stats.starved_requests == 2
    cache.finish("a")
    cache.finish("b")
    assert cache.stats.bytes == 0


def test_accounting_returns_to_zero_after_a_random_life() -> None:
    rng = np.random.default_rng(0)
    cache = SuffixCache(budget_bytes=3000 * BYTES_PER_TOKEN)
    running: list[str] = []
    for step in range(3000):
        action = rng.integers(0, 10)
        if action == 0 or not running:
            rid = f"r{rng.integers(0, 50)}"
            cache.start(rid, rng.integers(0, 20, rng.integers(1, 60)), scope=int(step % 3))
            running = [*(r for r in running if r != rid), rid]
            continue
        rid = running[rng.integers(0, len(running))]
        if action == 1:
            running.remove(rid)
            (cache.finish if rng.random() < 0.5 else cache.discard)(rid)
        elif action == 2 and rng.random() < 0.02:
            cache.flush()
        else:
            cache.extend(rid, rng.integers(0, 20, rng.integers(1, 5)))
            draft(cache, rid, 16)
        assert 0 <= cache.stats.bytes <= cache.stats.budget_bytes
    for rid in running:
        cache.discard(rid)
    cache.flush()
    assert cache.stats.bytes == 0
    assert cache.stats.active_requests == 0


def test_bad_settings_and_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="max_depth"):
        SuffixCache(max_depth=1)
    with pytest.raises(ValueError, match="one-dimensional"):
        as_int32(np.zeros((2, 2), np.int32))


def test_token_buffer_grows() -> None:
    buffer = TokenBuffer(as_int32([1, 2, 3]))
    for i in range(1000):
        buffer.append(as_int32([i]))
    assert len(buffer) == 1003
    assert buffer.tail(3).tolist() == [997, 998, 999]
    assert buffer.view()[:4].tolist() == [1, 2, 3, 0]
    assert buffer.tail(0).tolist() == []
