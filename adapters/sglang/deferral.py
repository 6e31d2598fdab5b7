"""When EAGLE3's draft-extend may wait: pure bookkeeping, no tensors.

After every verify SGLang runs the draft head over the new tokens, so that it can draft next. While
the policy takes no draft of it, that is work for nothing (6% of a step of 16 rows on two cores).
It is then put off and done for several steps at once, which costs one forward and gives the same
state: the head is behind for a while, never starved.
"""

from __future__ import annotations

from enum import Enum, auto

MOST_STEPS = 16
"""Steps that wait at most. More save little, and the step that catches up takes longer."""
MOST_TOKENS = 4096
"""Verified tokens whose hidden states are kept at most: 100 MiB for an 8B target."""


class Extend(Enum):
    """What becomes of one step's draft-extend."""

    NOW = auto()
    LATER = auto()
    NEVER = auto()


class Deferral:
    """Decides step by step. Deterministic."""

    def __init__(self, after: int, *, uses_model: bool) -> None:
        """Put draft-extend off once steps with ``after`` rows together took no model draft.

        Rows are counted because what draft-extend costs grows with them, while a head that is
        behind when it is wanted again costs the drafts of one step.

        Args:
            after: row-steps; 0 never puts it off.
            uses_model: False for a policy that takes no model draft at all.
        """
        self._after, self._uses_model = after, uses_model
        self._unused = self._steps = self._tokens = 0

    @property
    def rests(self) -> bool:
        """Whether draft-extend may be put off at all."""
        return self._after > 0

    @property
    def behind(self) -> bool:
        """Whether the draft head lacks tokens, so that it cannot draft for the coming step."""
        return self._steps > 0

    def next(self, wanted: bool, rows: int, width: int) -> Extend:
        """What to do after this step.

        Args:
            wanted: whether the policy takes, or would take, a model draft.
            rows: requests of this step.
            width: tokens verified in each.
        """
        if self._after and not self._uses_model:
            return Extend.NEVER
        tokens = rows * width
        self._unused = 0 if wanted else self._unused + rows
        full = self._steps + 1 >= MOST_STEPS or self._tokens + tokens > MOST_TOKENS
        if not self._after or self._unused <= self._after or full:
            self._steps = self._tokens = 0
            return Extend.NOW
        self._steps += 1
        self._tokens += tokens
        return Extend.LATER
