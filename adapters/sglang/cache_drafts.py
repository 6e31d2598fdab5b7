"""The suffix cache as decode steps use it: followed requests in, a step's cache drafts out.

It raises as the suffix cache does; whoever calls goes on without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.base import Drafts
from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.adapters.sglang.requests import Followed, prompt, scope
from hybridspec.adapters.suffix import SuffixCache, SuffixStats


class CacheDrafts:
    """One per scheduler process."""

    def __init__(self, settings: HybridConfig) -> None:
        self._scope = settings.suffix_scope
        self._fault_every, self._steps = settings.fault_every, 0
        self._cache = SuffixCache(
            max_depth=settings.suffix_depth,
            budget_bytes=settings.suffix_budget_mb << 20,
            max_spec_factor=settings.suffix_factor,
            min_token_prob=settings.suffix_min_prob,
        )

    @property
    def stats(self) -> SuffixStats:
        """Current size and counters."""
        return self._cache.stats

    def extend(self, rows: Sequence[Followed], fresh: Sequence[NDArray[np.int32]]) -> None:
        """Take in what each row's last step produced; a row that the cache lacks starts anew."""
        self._steps += 1
        if self._fault_every and self._steps % self._fault_every == 0:
            for row in rows:
                row.cached = False
            raise RuntimeError("fault_every: raised on purpose")
        known = [row.cached for row in rows]
        for row in rows:
            row.cached = False  # stays so if the cache raises: then all start over
        for row, cached in zip(rows, known, strict=True):
            if not cached:
                request = row.request
                self._cache.start(request.rid, prompt(request), scope(request, self._scope))
        self._cache.extend_all(
            [row.request.rid for row in rows],
            [
                tokens if cached else row.output()
                for row, tokens, cached in zip(rows, fresh, known, strict=True)
            ],
        )
        for row in rows:
            row.cached = True

    def draft(self, rows: Sequence[Followed], into: Drafts, most: int) -> None:
        """Write each row's draft of at most ``most`` tokens."""
        self._cache.draft([row.request.rid for row in rows], into, most)

    def finish(self, rid: str, row: Followed) -> None:
        """A request ended; others may be offered its response unless it was aborted."""
        if row.aborted() or self._scope == "request":
            self._cache.discard(rid)
            return
        self._cache.extend(rid, row.last_tokens())
        self._cache.finish(rid)

    def discard(self, rid: str) -> None:
        """A request vanished; nothing of it stays."""
        self._cache.discard(rid)

    def flush(self) -> None:
        """Forget all; running requests go on."""
        self._cache.flush()
