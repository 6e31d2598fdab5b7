"""The contract between a step's facts, a policy and the engine that carries its decision out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.source import Source


@dataclass(frozen=True, slots=True)
class StepView:
    """What a policy may know about the batch before a step.

    Attributes:
        cache_length: int32 ``[rows]``, tokens of each row's cache draft (0 = none).
        cache_score: float32 ``[rows]``, the suffix tree's expected accepted length.
        survival: float32 ``[rows, K]``, P(at least k+1 tokens of the cache draft are accepted), as
            the gate or the acceptance table predicts it; what stands beyond a row's
            ``cache_length`` is ignored. None: nothing predicts, policies then take the score at
            its word.
        model_survival: float32 ``[rows, S]``, the same for EAGLE3's draft of S steps.
            ``[rows, 0]``: there is no draft head.
        context_tokens: tokens in the KV cache of all rows together.
        model_free: leading tokens of EAGLE3's draft that need no draft-head forward (its
            draft-extend has predicted the first one already).
        overlap: float32 ``[rows, S]``, P(at least k+1 tokens of both drafts would be accepted),
            where both may be verified side by side in a tree; None where a row is one chain.
    """

    cache_length: NDArray[np.int32]
    cache_score: NDArray[np.float32]
    survival: NDArray[np.float32] | None
    model_survival: NDArray[np.float32]
    context_tokens: int
    model_free: int = 0
    overlap: NDArray[np.float32] | None = None

    @property
    def rows(self) -> int:
        return len(self.cache_length)

    @property
    def model_steps(self) -> int:
        """S, the tokens that one draft-head forward proposes for a row; 0 without a head."""
        return int(self.model_survival.shape[1])


@dataclass(frozen=True, slots=True)
class Decision:
    """One verify width for the batch and one source per row.

    Attributes:
        width: tokens verified per row: the newest token and up to ``width - 1`` draft tokens.
        source: int8 ``[rows]``, values of :class:`Source`.
        length: int32 ``[rows]``, draft tokens to propose, at most ``width - 1``; 0 for NONE.
        branch: int32 ``[rows]``, tokens of EAGLE3's draft to verify beside a row's cache draft, the
            two together at most ``width - 1``; 0 for rows of another source. None: all are 0.
    """

    width: int
    source: NDArray[np.int8]
    length: NDArray[np.int32]
    branch: NDArray[np.int32] | None = None

    @property
    def model_length(self) -> int:
        """Longest model draft that any row takes; 0 if none does. The draft head's forward must run
        (for the whole batch) if this exceeds the view's ``model_free``."""
        alone = int(self.length[self.source == Source.MODEL].max(initial=0))
        return alone if self.branch is None else max(alone, int(self.branch.max(initial=0)))


class Policy(Protocol):
    """Turns a step's view into a decision. Mutates nothing of the view, deterministic, never raises
    for a valid view."""

    @property
    def name(self) -> str: ...

    @property
    def uses_model(self) -> bool:
        """Whether it may ever choose the model draft."""
        ...

    def decide(self, view: StepView) -> Decision: ...


class StepTime(Protocol):
    """Predicts how long a step takes."""

    @property
    def extend_share(self) -> float:
        """Share of a step's time, below 1, that is saved while the draft head rests."""
        ...

    def predict(self, rows: int, width: int, context_tokens: int, model: bool) -> float:
        """Seconds of one step; ``model``: whether the draft head's forward runs. > 0."""
        ...
