"""Both ways to have suffix trees give the same drafts; what is said where only one can be had."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from hybridspec.adapters.suffix import SuffixCache
from hybridspec.adapters.suffix.front import CompiledTrees, FrontUnavailable, built
from hybridspec.adapters.suffix.library import LibraryTrees
from hybridspec.adapters.suffix.trees import Trees
from hybridspec.gate.observations import Observations


def test_both_ways_draft_the_same() -> None:
    rng = np.random.default_rng(0)
    ways: list[Trees] = [CompiledTrees(), LibraryTrees()]
    caches = [SuffixCache(max_depth=16, trees=trees, budget_bytes=3000 * 300) for trees in ways]
    rids = [f"r{row}" for row in range(24)]
    found = [Observations.allocate(len(rids), 12) for _ in caches]
    drafted = shared = 0
    for step in range(400):
        rid = rids[rng.integers(0, 16)]  # the others stay unknown
        tokens = rng.integers(0, 6, rng.integers(1, 40)).astype(np.int32)
        action = rng.integers(0, 8)
        for cache, into in zip(caches, found, strict=True):
            if action == 0:
                cache.finish(rid)
            elif action == 1:
                cache.start(rid, tokens, scope=step % 2)
            elif action == 2 and step % 97 == 0:
                cache.flush()
            else:
                cache.extend(rid, tokens[:5])
            cache.draft(rids, into, 12 if step % 2 else 7)
        for field in fields(Observations):
            one, two = (getattr(into, field.name) for into in found)
            assert (one == two).all(), field.name
        drafted += int((found[0].length > 0).sum())
        shared += int(found[0].shared.sum())
    assert drafted > 1000
    assert shared > 100


def test_a_machine_without_a_compiler_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "/nonexistent/c++ -m64")
    with pytest.raises(FrontUnavailable, match=r"there is no C\+\+ compiler /nonexistent/c\+\+$"):
        built()
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'raise SystemExit(\"no such option\")'")
    with pytest.raises(FrontUnavailable, match="failed: no such option"):
        built()
    assert not any((tmp_path / "suffix-front").iterdir())


def test_a_broken_build_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = built()
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path))
    broken = tmp_path / "suffix-front" / kept.name
    broken.parent.mkdir()
    broken.write_bytes(b"not a library")
    with pytest.raises(FrontUnavailable, match=r"invalid ELF header|file too short"):
        CompiledTrees()
