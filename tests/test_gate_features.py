"""Token flags, history and features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridspec.adapters.base import Source as DrafterSource
from hybridspec.gate.errors import GateError
from hybridspec.gate.features import DRAFT_FEATURES, FEATURES, HISTORY_FEATURES, FeatureSet
from hybridspec.gate.history import HISTORY_COLUMNS, RequestHistory, agreement
from hybridspec.gate.observations import Observations
from hybridspec.gate.source import Source
from hybridspec.gate.tokens import FLAGS, TokenTable

STRINGS = [" ", "\n", "foo", " bar_1", "12", "(", '",', ");\n", "", "caf\u00e9", "-"]


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def draft(
    obs: Observations,
    row: int,
    tokens: list[int],
    probs: list[float],
    match: int = 3,
    shared: bool = False,
) -> None:
    """Write a draft as a drafter would."""
    obs.tokens[row, : len(tokens)] = tokens
    obs.probs[row, : len(probs)] = probs
    obs.length[row], obs.score[row] = len(tokens), sum(probs)
    obs.match_length[row], obs.shared[row] = match, shared


def test_sources_are_the_seams() -> None:
    assert {s.name: s.value for s in Source} == {s.name: s.value for s in DrafterSource}


def test_token_flags() -> None:
    table = TokenTable.from_strings(STRINGS)
    names = [
        {flag for flag, on in zip(FLAGS, row, strict=True) if on}
        for row in table.lookup(np.arange(len(STRINGS)))
    ]
    assert names == [
        {"whitespace"},
        {"whitespace", "newline"},
        {"identifier"},
        {"identifier"},
        {"digit"},
        {"punctuation", "bracket"},
        {"punctuation", "delimiter"},
        {"punctuation", "bracket", "delimiter", "newline"},
        set(),
        {"identifier"},
        {"punctuation"},
    ]
    assert not table.lookup(i32(-1, len(STRINGS), 10**6)).any()


def test_token_table_round_trip(tmp_path: Path) -> None:
    table = TokenTable.from_decoder(lambda token: STRINGS[token], len(STRINGS))
    table.save(tmp_path / "tokens.npz")
    again = TokenTable.load(tmp_path / "tokens.npz")
    ids = np.arange(-1, len(STRINGS))
    assert (again.lookup(ids) == table.lookup(ids)).all()
    with pytest.raises(GateError, match="no file"):
        TokenTable.load(tmp_path / "missing.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(GateError, match="cannot be read"):
        TokenTable.load(tmp_path / "bad.npz")
    with pytest.raises(GateError, match="token table"):
        TokenTable(np.zeros((3, 2), np.uint8))


def test_agreement_matches_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    for width in (1, 3, 9):
        drafts = rng.integers(0, 3, (50, 6)).astype(np.int32)
        tokens = rng.integers(0, 3, (50, width)).astype(np.int32)
        lengths = rng.integers(0, 7, 50).astype(np.int32)
        counts = rng.integers(0, width + 1, 50).astype(np.int32)
        expected = []
        for row in range(50):
            k = 0
            while k < min(lengths[row], counts[row]) and drafts[row, k] == tokens[row, k]:
                k += 1
            expected.append(k)
        assert agreement(drafts, lengths, tokens, counts).tolist() == expected
    assert agreement(drafts[:0], lengths[:0], tokens[:0], counts[:0]).tolist() == []


def value(history: RequestHistory, slot: int, name: str) -> float:
    return float(history.read(np.array([slot]))[0, HISTORY_COLUMNS.index(name)])


def test_history_of_one_request() -> None:
    history = RequestHistory(4)
    slot = np.array([2])
    assert value(history, 2, "first_hit") == 0.5

    def step(drafted: list[int], new: list[int], source: Source, accepted: int) -> int:
        matched = history.update(
            slot,
            np.array([drafted + [-1] * (8 - len(drafted))], np.int32),
            i32(len(drafted)),
            np.array([new], np.int32),
            i32(len(new)),
            np.array([source], np.int8),
            i32(accepted),
        )
        return int(matched[0])

    # A plain step: the draft's first token came true, more is not known yet.
    assert step([5, 6, 7], [5], Source.NONE, 0) == 1
    assert value(history, 2, "first_hit") == 1.0
    assert value(history, 2, "running_match") == 1.0
    # A verified cache draft: two of three accepted.
    assert step([6, 7, 8], [6, 7, 1], Source.CACHE, 2) == 2
    assert value(history, 2, "cache_accepted") == 2.0
    assert value(history, 2, "last_accepted") == 2.0
    assert value(history, 2, "running_match") == 0.0
    assert value(history, 2, "cache_rate") == pytest.approx(0.2)
    # An EAGLE3 step without a cache draft leaves the cache's columns alone.
    before = value(history, 2, "first_hit_rate")
    assert step([], [3, 4], Source.MODEL, 1) == 0
    assert value(history, 2, "first_hit_rate") == before
    assert value(history, 2, "model_accepted_mean") == pytest.approx(0.2)
    assert value(history, 2, "cache_accepted") == 2.0
    # Others are untouched, and a reset slot is as new.
    assert value(history, 1, "first_hit") == 0.5
    history.reset(slot)
    assert (history.read(np.array([2])) == history.read(np.array([0]))).all()


def test_batched_history_equals_single_rows() -> None:
    rng = np.random.default_rng(1)
    together, alone = RequestHistory(6), RequestHistory(6)
    for _ in range(30):
        slots = rng.permutation(6)[:4]
        drafts = rng.integers(0, 2, (4, 8)).astype(np.int32)
        length = rng.integers(0, 9, 4).astype(np.int32)
        tokens = rng.integers(0, 2, (4, 5)).astype(np.int32)
        count = rng.integers(1, 6, 4).astype(np.int32)
        source = rng.integers(0, 3, 4).astype(np.int8)
        together.update(slots, drafts, length, tokens, count, source, count - 1)
        for row in range(4):
            one = slice(row, row + 1)
            alone.update(
                slots[one],
                drafts[one],
                length[one],
                tokens[one],
                count[one],
                source[one],
                count[one] - 1,
            )
    every = np.arange(6)
    assert (together.read(every) == alone.read(every)).all()


def observations() -> Observations:
    obs = Observations.allocate(3, 8)
    draft(obs, 0, [2, 4, 3], [1.0, 0.5, 0.5], match=5, shared=True)
    draft(obs, 1, list(range(8)), [0.5] * 8)
    draft(obs, 2, list(range(8)), [1.0] * 8)
    obs.put(0, 1, 10, 4)
    obs.put(1, 2, 100, 0)
    obs.put(2, 7, 1, 1)
    return obs


def test_feature_values() -> None:
    obs = observations()
    names = list(FEATURES)
    matrix = FeatureSet(names, TokenTable.from_strings(STRINGS)).compute(obs)
    assert matrix.shape == (3, len(names))
    assert matrix.dtype == np.float32
    assert np.isfinite(matrix).all()
    assert (matrix >= 0).all()
    first = dict(zip(names, matrix[0].tolist(), strict=True))
    assert first["score"] == 2.0
    assert first["draft_length"] == 3.0
    assert first["prob_1"] == 1.0
    assert first["prob_4"] == 0.0
    assert first["prob_last"] == 0.5
    assert first["certain_length"] == 1.0
    assert first["shared"] == 1.0
    assert first["generated_share"] == pytest.approx(4 / 14)
    assert first["draft_digit"] == pytest.approx(1 / 3)
    assert first["first_identifier"] == 1.0
    assert first["last_newline"] == 1.0
    assert matrix[1, names.index("certain_length")] == 8
    assert matrix[2, names.index("draft_length")] == 8


def test_rows_and_padding_do_not_change_features() -> None:
    names = [*DRAFT_FEATURES, *HISTORY_FEATURES]
    wide = Observations.allocate(1, 40)
    draft(wide, 0, [2, 4, 3], [1.0, 0.5, 0.5], match=5, shared=True)
    wide.put(0, 1, 10, 4)
    features = FeatureSet(names)
    assert (features.compute(wide)[0] == features.compute(observations())[0]).all()
    out = np.empty((2, len(names)), np.float32)
    assert features.compute(observations().head(2), out) is out
    both = Observations.concat([observations(), observations().take(np.array([2]))])
    assert (features.compute(both)[3] == features.compute(both)[2]).all()


def test_bad_feature_lists_are_refused() -> None:
    with pytest.raises(GateError, match=r"unknown features \['nope'\]; valid are score"):
        FeatureSet(["score", "nope"])
    with pytest.raises(GateError, match="token table"):
        FeatureSet(["score", "draft_digit"])
    for names in ([], ["score", "score"]):
        with pytest.raises(GateError, match="at least one"):
            FeatureSet(names)
