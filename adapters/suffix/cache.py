"""The suffix cache: drafts copied from a request's own text and from earlier responses.

SuffixDecoding (arXiv 2411.04975) on arctic-inference's suffix tree. A draft is the better-scored of
two look-ups: the request's own tree (prompt and output) and its scope's shared tree (responses).
This module does not know engines, batches, gates or whether a draft will be verified.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hybridspec.adapters.base import Drafts
from hybridspec.adapters.suffix.front import CompiledTrees, FrontUnavailable
from hybridspec.adapters.suffix.library import LibraryTrees
from hybridspec.adapters.suffix.shared import BYTES_PER_TOKEN, Scope, SharedResponses
from hybridspec.adapters.suffix.tokens import TokenBuffer, TokenIds, as_int32
from hybridspec.adapters.suffix.trees import Growth, Limits, LookUp, Tree, Trees

logger = logging.getLogger(__name__)


@cache
def best_trees() -> Trees:
    """The compiled front, built on first use, or else the library's binding; says once why."""
    try:
        return CompiledTrees()
    except FrontUnavailable as reason:
        logger.warning(
            "hybridspec: suffix look-ups are made one by one (%s); steps of many requests take "
            "longer",
            reason,
        )
        return LibraryTrees()


@dataclass(frozen=True, slots=True)
class SuffixStats:
    """A snapshot; ``bytes`` is estimated from token counts (see ``BYTES_PER_TOKEN``)."""

    active_requests: int
    cached_responses: int
    scopes: int
    bytes: int
    budget_bytes: int
    evictions: int
    starved_requests: int


@dataclass(slots=True)
class _Request:
    """One running request. ``own`` is None until its first use after a flush."""

    key: Hashable
    tokens: TokenBuffer
    own: Tree | None = None
    indexed: int = 0  # tokens in ``own``
    scope: Scope | None = None
    sequence: int = 0
    starved: bool = False  # the budget is full of running requests: trees no longer grow


class SuffixCache:
    """Suffix trees of running requests and earlier responses, within one byte budget.

    Not thread-safe; every call is synchronous and mutates only this object. Requests of different
    scopes never see each other's text. The budget covers running requests too: finished responses
    are evicted first, then long prompts are indexed from their end only, then trees stop growing.
    """

    def __init__(
        self,
        *,
        max_depth: int = 64,
        budget_bytes: int = 512 << 20,
        max_spec_factor: float = 4.0,
        min_token_prob: float = 0.1,
        trees: Trees | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            max_depth: longest match plus draft, in tokens. 64 as in arctic-inference.
            budget_bytes: estimated bytes of all trees together.
            max_spec_factor: at most this many draft tokens per matched token. Replaying code edits
                / summaries, 1, 2, 4 and 8 reach 6.2, 7.5, 8.2, 8.5 / 1.3, 1.7, 1.9, 2.0 accepted
                tokens a position, while the score's error grows from 3.9 to 8.4 / 1.3 to 7.2.
            min_token_prob: a draft ends before the path probability falls below this. 0.02 to 0.1
                made no difference there; 0.3 loses 3-13% of the drafts.
            trees: how trees are had; the best way that this machine has by default.

        Raises:
            ValueError: a setting out of range.
        """
        if max_depth < 2 or budget_bytes < 0 or max_spec_factor <= 0:
            raise ValueError(
                "suffix cache: max_depth must be >= 2, budget_bytes >= 0, max_spec_factor > 0; got "
                f"{max_depth}, {budget_bytes}, {max_spec_factor}"
            )
        self._budget_tokens = budget_bytes // BYTES_PER_TOKEN
        self._budget_bytes = budget_bytes
        self._trees = trees or best_trees()
        self._limits = Limits(max_depth, float(max_spec_factor), float(min_token_prob))
        self._nobody = LookUp(self._trees.tree(max_depth), -1, None, -1, TokenBuffer(as_int32([])))
        self._requests: dict[str, _Request] = {}
        self._own_tokens = 0
        self._starved = 0
        self._shared = SharedResponses(self._trees, max_depth)

    def start(self, rid: str, prompt: TokenIds, scope: Hashable = None) -> None:
        """Register a request whose context so far is ``prompt``.

        Safe for a request that is already active (retracted and prefilled again): a context that
        continues what is known only adds the new tokens, and any other replaces it.

        Args:
            rid: the request's id; may be reused once finished or discarded.
            prompt: token ids ``[n]``, with the output so far if the request is re-admitted.
            scope: sharing scope (cache salt, adapter). Requests of one scope share responses.
        """
        tokens = as_int32(prompt)
        known = self._requests.get(rid)
        if known is not None:
            held = len(known.tokens)
            same_start = held <= len(tokens) and np.array_equal(known.tokens.view(), tokens[:held])
            if known.key == scope and same_start:
                self.extend(rid, tokens[held:])
                return
            self.discard(rid)
        request = _Request(key=scope, tokens=TokenBuffer(tokens))
        self._requests[rid] = request
        self._index(request)

    def extend(self, rid: str, tokens: TokenIds) -> None:
        """Add newly accepted tokens (bonus included) of one request: see :meth:`extend_all`."""
        self.extend_all([rid], [tokens])

    def extend_all(self, rids: Sequence[str], tokens: Sequence[TokenIds]) -> None:
        """Add each request's newly accepted tokens (bonus included) to its own and its shared tree.

        Unknown requests are ignored.
        """
        rows = [
            growth
            for rid, new in zip(rids, tokens, strict=True)
            if (growth := self._growth(self._requests.get(rid), new)) is not None
        ]
        if rows:
            self._trees.grow(rows)

    def draft(self, rids: Sequence[str], into: Drafts, most: int) -> None:
        """Write the best continuation of each request's context: a chain of up to ``most`` tokens.

        A row stays empty for an unknown id or without a match. Ties go to the request's own text.

        Args:
            rids: requests in row order.
            into: written in place, the first ``len(rids)`` rows.
            most: most tokens of a draft; never more than ``into`` is deep.
        """
        rows = [self._look_up(rid) for rid in rids]
        self._trees.draft(rows, into, min(most, into.tokens.shape[1]), self._limits)

    def finish(self, rid: str) -> None:
        """The request ended: its own tree goes, its response stays shared until evicted."""
        self._close(rid, keep=True)

    def discard(self, rid: str) -> None:
        """The request was aborted: nothing of it stays."""
        self._close(rid, keep=False)

    def flush(self) -> None:
        """Forget every tree (weights changed). Running requests are indexed again when next used.

        What they wrote before the flush stays their own context and is shared no more.
        """
        self._shared.clear()
        self._own_tokens = 0
        for request in self._requests.values():
            request.own, request.scope, request.indexed, request.starved = None, None, 0, False

    @property
    def stats(self) -> SuffixStats:
        """Current size and counters."""
        return SuffixStats(
            active_requests=len(self._requests),
            cached_responses=len(self._shared),
            scopes=self._shared.scopes,
            bytes=self._used() * BYTES_PER_TOKEN,
            budget_bytes=self._budget_bytes,
            evictions=self._shared.evictions,
            starved_requests=self._starved,
        )

    def _look_up(self, rid: str) -> LookUp:
        request = self._requests.get(rid)
        if request is None:
            return self._nobody
        if request.own is None:
            self._index(request)
        assert request.own is not None
        assert request.scope is not None
        shared = request.scope.tree if request.scope.lengths else None
        if request.starved:
            return LookUp(request.own, -1, shared, -1, request.tokens)
        return LookUp(request.own, 0, shared, request.sequence, request.tokens)

    def _index(self, request: _Request) -> None:
        """Build the request's own tree from its context and open its response in its scope."""
        room = self._make_room(len(request.tokens))
        request.own = self._trees.tree(self._limits.depth)
        context = request.tokens.tail(room)
        if len(context):
            request.own.extend(0, context)
        request.indexed = len(context)
        self._own_tokens += len(context)
        if request.indexed < len(request.tokens):
            self._starve(request)
        request.scope, request.sequence = self._shared.open(request.key)

    def _growth(self, request: _Request | None, tokens: TokenIds) -> Growth | None:
        """Take in a request's new tokens; what its trees are to be extended by."""
        count = len(tokens)
        if request is None or not count:
            return None
        if request.own is None:
            self._index(request)
        request.tokens.append(as_int32(tokens))
        if request.starved:
            return None
        copies = 2  # one in the request's own tree, one in the shared tree
        if self._make_room(copies * count) < copies * count:
            # Growing later would join tokens that never stood together.
            self._starve(request)
            return None
        assert request.own is not None
        assert request.scope is not None
        request.indexed += count
        self._own_tokens += count
        self._shared.grown(request.scope, request.sequence, count)
        return Growth(request.own, request.scope.tree, request.sequence, request.tokens, count)

    def _starve(self, request: _Request) -> None:
        request.starved = True
        self._starved += 1

    def _used(self) -> int:
        return self._own_tokens + self._shared.tokens

    def _make_room(self, tokens: int) -> int:
        """Evict finished responses until ``tokens`` more fit; the room there is then, in tokens."""
        while self._used() + tokens > self._budget_tokens and self._shared.evict_one():
            pass
        return max(0, self._budget_tokens - self._used())

    def _close(self, rid: str, keep: bool) -> None:
        request = self._requests.pop(rid, None)
        if request is None or request.own is None:
            return
        self._own_tokens -= request.indexed
        assert request.scope is not None
        self._shared.close(request.key, request.scope, request.sequence, keep)
