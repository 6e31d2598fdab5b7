"""What the last launched batch produced, on the host before the scheduler has taken it in.

With overlap scheduling a step is planned while the results of the one before still wait for the
scheduler, so ``output_ids`` lacks its tokens. They are copied as soon as verification has them, on
a stream of their own, and waited for when the next step is planned: the device runs draft-extend
meanwhile. The side stream and the pinned memory were not run on a GPU by the authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hybridspec.adapters.sglang.requests import Relayed


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one launched batch: new tokens by request id and, after a decode step, the accepted
    lengths (bonus excluded) in row order, and what came of its branches, int32 ``[2, rows]``."""

    tokens: dict[str, Relayed]
    accepted: list[int] | None
    branches: NDArray[np.int32] | None = None


class _Copy(Protocol):
    def start(self, parts: Sequence[torch.Tensor]) -> None: ...

    def wait(self) -> list[NDArray[np.int32]]: ...


class TokenRelay:
    """Holds the newest batch only: older ones have been taken in by then."""

    def __init__(self, device: str) -> None:
        self._copy: _Copy = _OnHost() if device == "cpu" else _FromDevice(device)
        self._launched: list[tuple[str, int]] | None = None

    def launched(
        self,
        requests: Sequence[Any],
        tokens: torch.Tensor,
        lengths: torch.Tensor | None = None,
        branches: torch.Tensor | None = None,
    ) -> None:
        """Start to copy what a batch produced.

        Args:
            requests: SGLang's, in row order.
            tokens: int ``[rows * width]``; row ``i`` has its tokens at ``i * width`` and after.
            lengths: int ``[rows]``, tokens of each row, bonus included; None for a prefill, which
                produces one each.
            branches: int ``[2, rows]``, of a step with branches (see
                :func:`hybridspec.gate.step_outcome.outcome`).
        """
        self._launched = [(each.rid, len(each.output_ids)) for each in requests]
        flat = None if branches is None else branches.reshape(-1)
        self._copy.start([part for part in (tokens, lengths, flat) if part is not None])

    def forget(self) -> None:
        """The newest batch produced nothing that a step could need."""
        self._launched = None

    def take(self) -> Outcome | None:
        """Wait for the newest batch's tokens; None if they were taken already."""
        launched, self._launched = self._launched, None
        if launched is None:
            return None
        tokens, *after_decode = self._copy.wait()
        width = len(tokens) // max(len(launched), 1)
        counts = after_decode[0].tolist() if after_decode else [1] * len(launched)
        rows = {
            rid: Relayed(tokens[at * width : at * width + count], held)
            for at, ((rid, held), count) in enumerate(zip(launched, counts, strict=True))
        }
        if not after_decode:
            return Outcome(rows, None)
        branches = after_decode[1].reshape(2, -1) if after_decode[1:] else None
        return Outcome(rows, [count - 1 for count in counts], branches)


class _OnHost:
    """Everything is on the host already."""

    def start(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts = parts

    def wait(self) -> list[NDArray[np.int32]]:
        return [part.to(torch.int32).numpy() for part in self._parts]


class _FromDevice:
    """Copies into pinned memory on a side stream; one copy at a time."""

    def __init__(self, device: str) -> None:
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream()
        self._done = self._module.Event()
        self._pinned = torch.empty(0, dtype=torch.int32, pin_memory=True)
        self._ends: list[int] = []

    def start(self, parts: Sequence[torch.Tensor]) -> None:
        self._ends = list(accumulate(len(part) for part in parts))
        if self._ends[-1] > len(self._pinned):
            self._done.synchronize()
            self._pinned = torch.empty(2 * self._ends[-1], dtype=torch.int32, pin_memory=True)
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            for part, end in zip(parts, self._ends, strict=True):
                # The allocator must not hand its memory out before the copy has read it.
                part.record_stream(self._stream)
                narrow = part.to(torch.int32)
                self._pinned[end - len(part) : end].copy_(narrow, non_blocking=True)
            self._done.record(self._stream)

    def wait(self) -> list[NDArray[np.int32]]:
        self._done.synchronize()
        # Copies: the next step overwrites the pinned memory while these are still in use.
        held = self._pinned[: self._ends[-1]].numpy().copy()
        return np.split(held, self._ends[:-1])
