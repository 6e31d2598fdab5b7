"""The requests that the worker follows from step to step, each in a numbered slot.

Slots index the arrays that the gate and the policy keep per request. SGLang does not tell when a
waiting request is aborted, so requests unseen for long are dropped; one that comes back is new.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SWEEP_EVERY = 256
"""Decode steps between two sweeps for vanished requests."""
STALE_AFTER = 2048
"""Decode steps after which an unseen request is dropped. A retracted request that waits longer only
loses its trees' warmth, so the number needs no care."""

_UNLIMITED = 1 << 30


_NONE: NDArray[np.int32] = np.empty(0, np.int32)


class Relayed(NamedTuple):
    """What the newest batch produced for a request, where ``output_ids`` may lack it still.

    ``tokens``: int32 ``[n]``. ``held``: length of ``output_ids`` when the batch was launched.
    """

    tokens: NDArray[np.int32]
    held: int


@dataclass(slots=True)
class Followed:
    """One request: SGLang's object, its slot, and how much of its output we have taken in.

    ``most``: tokens it may produce at most. ``cached``: whether the suffix cache holds the
    request's context up to ``taken``. ``ahead``: the tokens last taken from the relay.
    """

    request: Any
    slot: int
    taken: int
    last_step: int
    most: int
    cached: bool = False
    ahead: NDArray[np.int32] = field(default_factory=lambda: _NONE)

    def room(self) -> int:
        """Draft tokens that a step may accept before the request reaches its token limit: one less
        than it may still produce, for the bonus token."""
        return max(self.most - self.taken - 1, 0)

    def new_tokens(self, relayed: Relayed | None = None) -> NDArray[np.int32]:
        """Output tokens (int32 ``[n]``) since the last call; marks them taken.

        ``relayed`` counts where ``output_ids`` has nothing new: a step adds one token at least.
        """
        # A slice is a copy: a view would lock SGLang's growing array.
        fresh = np.array(self.request.output_ids[self.taken :], dtype=np.int32)
        if not len(fresh) and relayed is not None:
            fresh = self.ahead = relayed.tokens
        self.taken += len(fresh)
        return fresh

    def newest_token(self) -> int:
        """The last token of the context as far as taken."""
        output = self.request.output_ids
        if self.taken > len(output):
            return int(self.ahead[-1])
        return int(output[self.taken - 1] if self.taken else self.request.origin_input_ids[-1])

    def last_tokens(self) -> NDArray[np.int32]:
        """As :meth:`new_tokens`, of a request that ended: nothing beyond its end. An accepted run
        may reach past a stop token or the token limit; SGLang keeps that in ``output_ids``."""
        return self.whole_output()[self.taken :]

    def whole_output(self) -> NDArray[np.int32]:
        """The output of a request that ended, as its user got it, int32 ``[n]``."""
        return np.array(self.request.output_ids_through_stop, dtype=np.int32)

    def output(self) -> NDArray[np.int32]:
        """All output tokens taken so far, int32 ``[n]``."""
        known = np.array(self.request.output_ids[: self.taken], dtype=np.int32)
        lacking = self.taken - len(known)
        return np.concatenate([known, self.ahead[-lacking:]]) if lacking else known

    def ended_by(self) -> str:
        """How the request ended (``stop``, ``length``, ``abort``); empty while it has not."""
        reason = self.request.finished_reason
        return "" if reason is None else str(reason.to_json().get("type", ""))

    def aborted(self) -> bool:
        """Whether the request ended by an abort, so that its response should not be kept."""
        return self.ended_by() == "abort"


class FollowedRequests:
    """All followed requests. ``capacity`` slots at first; grows by doubling."""

    def __init__(self, capacity: int, on_drop: Callable[[str], None]) -> None:
        self._by_rid: dict[str, Followed] = {}
        self._free = list(range(capacity))[::-1]
        self._capacity = capacity
        self._on_drop = on_drop
        self._step = 0

    def __len__(self) -> int:
        return len(self._by_rid)

    @property
    def capacity(self) -> int:
        """Slots there are; grows, never shrinks."""
        return self._capacity

    def rows(
        self, requests: Sequence[Any], relayed: Mapping[str, Relayed]
    ) -> tuple[list[Followed], list[bool]]:
        """The batch's requests in order, and which of them are followed only from now on."""
        self._step += 1
        if self._step % SWEEP_EVERY == 0:
            self._sweep()
        rows, new = [], []
        for request in requests:
            row = self._by_rid.get(request.rid)
            fresh = row is None or row.request is not request
            if row is None or fresh:
                newest = relayed.get(request.rid)
                taken = len(request.output_ids) if newest is None else newest.held
                row = self._follow(request, taken, row)
            row.last_step = self._step
            rows.append(row)
            new.append(fresh)
        return rows, new

    def pop(self, rid: str) -> Followed | None:
        """Stop following ``rid``; its slot is free for the next request."""
        row = self._by_rid.pop(rid, None)
        if row is not None:
            self._free.append(row.slot)
        return row

    def clear(self) -> None:
        """Drop all requests."""
        for rid in list(self._by_rid):
            self.pop(rid)
            self._on_drop(rid)

    def _follow(self, request: Any, taken: int, replaced: Followed | None) -> Followed:
        if replaced is not None:
            self.pop(request.rid)
        if not self._free:
            self._free = list(range(self._capacity, 2 * self._capacity))[::-1]
            self._capacity *= 2
        most = request.sampling_params.max_new_tokens
        row = Followed(
            request,
            self._free.pop(),
            taken,
            self._step,
            _UNLIMITED if most is None else most,
        )
        self._by_rid[request.rid] = row
        return row

    def _sweep(self) -> None:
        stale = self._step - STALE_AFTER
        for rid, row in list(self._by_rid.items()):
            if row.last_step < stale:
                self.pop(rid)
                self._on_drop(rid)


def prompt(request: Any) -> NDArray[np.int32]:
    """The prompt's token ids, int32 ``[n]``."""
    return np.array(request.origin_input_ids, dtype=np.int32)


def scope(request: Any, kind: str) -> Hashable:
    """What must be equal for two requests to share responses.

    Args:
        request: SGLang's.
        kind: ``salt``: cache salt and extra key, which holds the LoRA adapter
            (``managers/schedule_batch.py``, SGLang 0.5.23); ``request``: they never share;
            ``global``: they always do.
    """
    if kind == "global":
        return None
    return request.rid if kind == "request" else (request.cache_salt, request.extra_key)
