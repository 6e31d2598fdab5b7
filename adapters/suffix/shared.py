"""Earlier responses, one suffix tree per sharing scope. Does not know prompts or drafting.

Bytes are estimated from token counts: arctic-inference has no cheap memory figure (its own estimate
walks the whole tree).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from hybridspec.adapters.suffix.trees import Tree, Trees

# Resident bytes per indexed token, measured on 300 English responses and prompts (348k tokens,
# depth 64): 287 in one shared tree, 248 in trees of single prompts. Rounded up.
BYTES_PER_TOKEN = 300


@dataclass(slots=True)
class Scope:
    """Responses that may be continued by each other's requests."""

    tree: Tree
    lengths: dict[int, int] = field(
        default_factory=dict
    )  # sequence id -> tokens, live and finished
    finished: OrderedDict[int, None] = field(default_factory=OrderedDict)  # oldest first
    live: int = 0  # requests that are still running in this scope


class SharedResponses:
    """Shared trees of all scopes; eviction takes the least recent scope's oldest response."""

    def __init__(self, trees: Trees, max_depth: int) -> None:
        self._trees, self._max_depth = trees, max_depth
        self._scopes: OrderedDict[Hashable, Scope] = OrderedDict()  # least recently used first
        self._next_sequence = 0
        self._finished = 0
        self.tokens = 0
        self.evictions = 0

    def __len__(self) -> int:
        """Finished responses held."""
        return self._finished

    @property
    def scopes(self) -> int:
        """Scopes held."""
        return len(self._scopes)

    def open(self, key: Hashable) -> tuple[Scope, int]:
        """The scope of ``key`` (made if new, now most recent) and a fresh sequence id in it."""
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope(self._trees.tree(self._max_depth))
        self._scopes.move_to_end(key)
        scope.live += 1
        # int32 in the tree: wraps after 2**31 requests, long after the old holder was evicted.
        self._next_sequence = (self._next_sequence + 1) & 0x7FFFFFFF
        return scope, self._next_sequence

    def grown(self, scope: Scope, sequence: int, count: int) -> None:
        """``count`` tokens are appended to the response ``sequence`` of ``scope`` by the caller."""
        scope.lengths[sequence] = scope.lengths.get(sequence, 0) + count
        self.tokens += count

    def close(self, key: Hashable, scope: Scope, sequence: int, keep: bool) -> None:
        """End a response: keep it for others until evicted, or remove it now."""
        scope.live -= 1
        if self._scopes.get(key) is not scope:
            return  # cleared meanwhile: the scope object is garbage
        if sequence in scope.lengths:
            if keep:
                scope.finished[sequence] = None
                self._finished += 1
                self._scopes.move_to_end(key)
            else:
                self._remove(scope, sequence)
        self._drop_if_empty(key, scope)

    def evict_one(self) -> bool:
        """Remove the oldest finished response of the least recent scope; False if none is left."""
        for key, scope in self._scopes.items():
            if scope.finished:
                sequence, _ = scope.finished.popitem(last=False)
                self._finished -= 1
                self._remove(scope, sequence)
                self._drop_if_empty(key, scope)
                self.evictions += 1
                return True
        return False

    def clear(self) -> None:
        """Forget every response and scope."""
        self._scopes.clear()
        self._finished = self.tokens = 0

    def _remove(self, scope: Scope, sequence: int) -> None:
        scope.tree.remove(sequence)
        self.tokens -= scope.lengths.pop(sequence)

    def _drop_if_empty(self, key: Hashable, scope: Scope) -> None:
        if not scope.live and not scope.lengths:
            del self._scopes[key]
