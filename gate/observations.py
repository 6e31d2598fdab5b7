"""What is known about the rows that have a cache draft, as arrays. Computes nothing from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.history import HISTORY_COLUMNS


@dataclass(frozen=True, slots=True)
class Observations:
    """One entry per row with a cache draft, all of it known before anything is verified.

    Attributes:
        tokens: int32 ``[rows, depth]``, draft token ids, padded with -1.
        probs: float32 ``[rows, depth]``, path probabilities, padded with 0.
        length: int32 ``[rows]``, draft tokens of the row.
        score: float32 ``[rows]``, the drafter's own expected accepted length.
        match_length: int32 ``[rows]``, context tokens that the draft's source matched.
        shared: bool ``[rows]``, the draft came from another request's response.
        last_token: int32 ``[rows]``, newest token of the context.
        prompt_length: int32 ``[rows]``.
        generated_length: int32 ``[rows]``, output tokens so far.
        history: float32 ``[rows, len(HISTORY_COLUMNS)]``, see :class:`RequestHistory`.
    """

    tokens: NDArray[np.int32]
    probs: NDArray[np.float32]
    length: NDArray[np.int32]
    score: NDArray[np.float32]
    match_length: NDArray[np.int32]
    shared: NDArray[np.bool_]
    last_token: NDArray[np.int32]
    prompt_length: NDArray[np.int32]
    generated_length: NDArray[np.int32]
    history: NDArray[np.float32]

    @property
    def rows(self) -> int:
        return len(self.length)

    @classmethod
    def allocate(cls, rows: int, depth: int) -> Observations:
        """Arrays for ``rows`` rows and drafts of up to ``depth`` tokens, all padding."""
        return cls(
            tokens=np.full((rows, depth), -1, np.int32),
            probs=np.zeros((rows, depth), np.float32),
            length=np.zeros(rows, np.int32),
            score=np.zeros(rows, np.float32),
            match_length=np.zeros(rows, np.int32),
            shared=np.zeros(rows, np.bool_),
            last_token=np.full(rows, -1, np.int32),
            prompt_length=np.zeros(rows, np.int32),
            generated_length=np.zeros(rows, np.int32),
            history=np.zeros((rows, len(HISTORY_COLUMNS)), np.float32),
        )

    def clear_drafts(self) -> None:
        """No row has a draft."""
        self.tokens.fill(-1)
        for array in (self.probs, self.length, self.score, self.match_length, self.shared):
            array.fill(0)

    def put(self, row: int, last_token: int, prompt_length: int, generated_length: int) -> None:
        """Write what is known of one row besides its draft and its history, in place."""
        self.last_token[row] = last_token
        self.prompt_length[row] = prompt_length
        self.generated_length[row] = generated_length

    def head(self, rows: int) -> Observations:
        """Views of the first ``rows`` rows: no copy, so a buffer can be filled again each step."""
        return Observations(*(getattr(self, field.name)[:rows] for field in fields(self)))

    def take(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Observations:
        """Copies of the rows that ``index`` selects."""
        return Observations(*(getattr(self, field.name)[index] for field in fields(self)))

    @classmethod
    def concat(cls, parts: Sequence[Observations]) -> Observations:
        """All rows of ``parts`` (of one depth, at least one part) in order."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )
