"""What the last launched batch produced, on the host before the scheduler has taken it in.

With overlap scheduling a step is planned while the results of the one before still wait for the
scheduler, so ``output_ids`` lacks its tokens. They are copied as soon as verification has them, on
a stream of their own, and waited for when the next step is planned: the device runs draft-extend
meanwhile. The side stream and the pinned memory were not run on a GPU by the authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hybridspec.adapters.sglang.requests import Relayed


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one launched batch: new tokens by request id and, after a decode step, the accepted
    lengths (bonus excluded) in row order."""

    tokens: dict[str, Relayed]
    accepted: list[int] | None


class _Copy(Protocol):
    def start(self, tokens: torch.Tensor, lengths: torch.Tensor | None) -> None: ...

    def wait(self) -> tuple[NDArray[np.int32], list[int] | None]: ...


class TokenRelay:
    """Holds the newest batch only: older ones have been taken in by then."""

    def __init__(self, device: str) -> None:
        self._copy: _Copy = _OnHost() if device == "cpu" else _FromDevice(device)
        self._launched: list[tuple[str, int]] | None = None

    def launched(
        self, requests: Sequence[Any], tokens: torch.Tensor, lengths: torch.Tensor | None
    ) -> None:
        """Start to copy what a batch produced.

        Args:
            requests: SGLang's, in row order.
            tokens: int ``[rows * width]``; row ``i`` has its tokens at ``i * width`` and after.
            lengths: int ``[rows]``, tokens of each row, bonus included; None for a prefill, which
                produces one each.
        """
        self._launched = [(each.rid, len(each.output_ids)) for each in requests]
        self._copy.start(tokens, lengths)

    def forget(self) -> None:
        """The newest batch produced nothing that a step could need."""
        self._launched = None

    def take(self) -> Outcome | None:
        """Wait for the newest batch's tokens; None if they were taken already."""
        launched, self._launched = self._launched, None
        if launched is None:
            return None
        tokens, lengths = self._copy.wait()
        width = len(tokens) // max(len(launched), 1)
        counts = [1] * len(launched) if lengths is None else lengths
        rows = {
            rid: Relayed(tokens[at * width : at * width + count], held)
            for at, ((rid, held), count) in enumerate(zip(launched, counts, strict=True))
        }
        return Outcome(rows, None if lengths is None else [count - 1 for count in lengths])


class _OnHost:
    """Everything is on the host already."""

    def start(self, tokens: torch.Tensor, lengths: torch.Tensor | None) -> None:
        self._tokens, self._lengths = tokens, lengths

    def wait(self) -> tuple[NDArray[np.int32], list[int] | None]:
        lengths = None if self._lengths is None else self._lengths.tolist()
        return self._tokens.to(torch.int32).numpy(), lengths


class _FromDevice:
    """Copies into pinned memory on a side stream; one copy at a time."""

    def __init__(self, device: str) -> None:
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream()
        self._done = self._module.Event()
        self._pinned = torch.empty(0, dtype=torch.int32, pin_memory=True)
        self._counts = 0, 0

    def start(self, tokens: torch.Tensor, lengths: torch.Tensor | None) -> None:
        rows = 0 if lengths is None else len(lengths)
        self._counts = len(tokens), rows
        needed = len(tokens) + rows
        if needed > len(self._pinned):
            self._done.synchronize()
            self._pinned = torch.empty(2 * needed, dtype=torch.int32, pin_memory=True)
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            for source, at in ((tokens, 0), (lengths, len(tokens))):
                if source is None:
                    continue
                # The allocator must not hand its memory out before the copy has read it.
                source.record_stream(self._stream)
                narrow = source.to(torch.int32)
                self._pinned[at : at + len(source)].copy_(narrow, non_blocking=True)
            self._done.record(self._stream)

    def wait(self) -> tuple[NDArray[np.int32], list[int] | None]:
        self._done.synchronize()
        tokens, rows = self._counts
        # Copies: the next step overwrites the pinned memory while these are still in use.
        held = self._pinned[: tokens + rows].numpy().copy()
        return held[:tokens], held[tokens:].tolist() if rows else None
