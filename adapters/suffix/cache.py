"""The suffix cache: drafts copied from a request's own text and from earlier responses.

SuffixDecoding (arXiv 2411.04975) on arctic-inference's suffix tree. A draft is the better-scored of
two look-ups: the request's own tree (prompt and output) and its scope's shared tree (responses).
This module does not know engines, batches, gates or whether a draft will be verified.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from arctic_inference.suffix_decoding.cache import SuffixTree
from numpy.typing import NDArray

from hybridspec.adapters.base import EMPTY_DRAFT, Draft
from hybridspec.adapters.suffix.shared import BYTES_PER_TOKEN, Scope, SharedResponses
from hybridspec.adapters.suffix.tokens import TokenBuffer, TokenIds, as_int32


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
    own: SuffixTree | None = None
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

        Raises:
            ValueError: a setting out of range.
        """
        if max_depth < 2 or budget_bytes < 0 or max_spec_factor <= 0:
            raise ValueError(
                "suffix cache: max_depth must be >= 2, budget_bytes >= 0, max_spec_factor > 0; got "
                f"{max_depth}, {budget_bytes}, {max_spec_factor}"
            )
        self._max_depth = max_depth
        self._budget_tokens = budget_bytes // BYTES_PER_TOKEN
        self._budget_bytes = budget_bytes
        self._factor = float(max_spec_factor)
        self._min_prob = float(min_token_prob)
        self._requests: dict[str, _Request] = {}
        self._own_tokens = 0
        self._starved = 0
        self._shared = SharedResponses(max_depth)

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
        """Add newly accepted tokens (bonus included) of this step to the own and the shared tree.

        An unknown ``rid`` is ignored.
        """
        request = self._requests.get(rid)
        if request is None or len(tokens) == 0:
            return
        new = as_int32(tokens)
        if request.own is None:
            self._index(request)
        request.tokens.append(new)
        if not request.starved:
            self._grow(request, new)

    def draft(self, rid: str, max_tokens: int) -> Draft:
        """The best continuation of the request's context: a chain of at most ``max_tokens`` tokens.

        Returns:
            The draft, or ``EMPTY_DRAFT`` for an unknown ``rid`` or without a match. Ties go to the
            request's own text.
        """
        request = self._requests.get(rid)
        if request is None or max_tokens <= 0:
            return EMPTY_DRAFT
        if request.own is None:
            self._index(request)
        assert request.own is not None
        assert request.scope is not None
        tail = request.tokens.tail(self._max_depth)
        best = self._look_up(request.own, tail, max_tokens)
        shared = False
        if request.scope.lengths:
            other = self._look_up(request.scope.tree, tail, max_tokens)
            if other.score > best.score:
                best, shared = other, True
        if best.score <= 0.0:
            return EMPTY_DRAFT
        return Draft(
            token_ids=np.array(best.token_ids, np.int32),
            probs=np.array(best.probs, np.float32),
            score=best.score,
            match_length=best.match_len,
            shared=shared,
        )

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

    def _look_up(self, tree: SuffixTree, tail: NDArray[np.int32], limit: int) -> Any:
        return tree.speculate_ndarray(tail, limit, self._factor, 0.0, self._min_prob, False)

    def _index(self, request: _Request) -> None:
        """Build the request's own tree from its context and open its response in its scope."""
        room = self._make_room(len(request.tokens))
        request.own = SuffixTree(self._max_depth)
        context = request.tokens.tail(room)
        if len(context):
            request.own.extend_ndarray(0, context)
        request.indexed = len(context)
        self._own_tokens += len(context)
        if request.indexed < len(request.tokens):
            self._starve(request)
        request.scope, request.sequence = self._shared.open(request.key)

    def _grow(self, request: _Request, new: NDArray[np.int32]) -> None:
        copies = 2  # one in the request's own tree, one in the shared tree
        if self._make_room(copies * len(new)) < copies * len(new):
            # Growing later would join tokens that never stood together.
            self._starve(request)
            return
        assert request.own is not None
        request.own.extend_ndarray(0, new)
        request.indexed += len(new)
        self._own_tokens += len(new)
        assert request.scope is not None
        self._shared.extend(request.scope, request.sequence, new)

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
