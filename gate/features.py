"""Named features over :class:`Observations`, vectorised over rows.

Values are raw counts and probabilities, all >= 0: scaling belongs to the model's graph, and plain
arithmetic is bit-equal in replay and server whatever the batch. Knows no model and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.history import HISTORY_COLUMNS
from hybridspec.gate.observations import Observations
from hybridspec.gate.tokens import FLAGS, TokenTable


class Inputs:
    """Observations plus the token table, with parts that several features share computed once."""

    def __init__(self, obs: Observations, table: TokenTable | None) -> None:
        self.obs = obs
        self._table = table

    @cached_property
    def draft_flags(self) -> NDArray[np.uint8]:
        """uint8 ``[rows, depth, len(FLAGS)]``."""
        assert self._table is not None  # FeatureSet checks it
        return self._table.lookup(self.obs.tokens)

    @cached_property
    def draft_share(self) -> NDArray[np.float32]:
        """float32 ``[rows, len(FLAGS)]``, share of the draft's tokens with each flag."""
        share: NDArray[np.float32] = self.draft_flags.sum(axis=1, dtype=np.float32)
        share /= np.maximum(self.obs.length, 1).astype(np.float32)[:, None]
        return share

    @cached_property
    def last_flags(self) -> NDArray[np.uint8]:
        """uint8 ``[rows, len(FLAGS)]`` of the context's newest token."""
        assert self._table is not None
        return self._table.lookup(self.obs.last_token)

    @cached_property
    def row(self) -> NDArray[np.intp]:
        return np.arange(self.obs.rows)


Values = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.integer] | NDArray[np.bool_]
Column = Callable[[Inputs], Values]


def _prob_at(position: int) -> Column:
    def column(inputs: Inputs) -> Values:
        probs = inputs.obs.probs
        if position > probs.shape[1]:
            return np.zeros(len(probs), np.float32)
        return probs[:, position - 1]

    return column


def _prob_last(inputs: Inputs) -> Values:
    last: Values = inputs.obs.probs[inputs.row, np.maximum(inputs.obs.length, 1) - 1]
    return last


def _certain(inputs: Inputs) -> Values:
    # Draft tokens before the first branch: up to there every earlier occurrence agreed.
    probs = inputs.obs.probs
    same: Values = (probs >= probs[:, :1]).sum(axis=1)
    return same * (inputs.obs.length > 0)


def _history(index: int) -> Column:
    return lambda inputs: inputs.obs.history[:, index]


def _flag(part: str, index: int) -> Column:
    if part == "draft":
        return lambda inputs: inputs.draft_share[:, index]
    if part == "first":
        return lambda inputs: inputs.draft_flags[:, 0, index]
    return lambda inputs: inputs.last_flags[:, index]


DRAFT_FEATURES: dict[str, Column] = {
    "score": lambda inputs: inputs.obs.score,
    "match_length": lambda inputs: inputs.obs.match_length,
    "draft_length": lambda inputs: inputs.obs.length,
    "score_share": lambda inputs: inputs.obs.score / np.maximum(inputs.obs.length, 1),
    "prob_1": _prob_at(1),
    "prob_2": _prob_at(2),
    "prob_4": _prob_at(4),
    "prob_8": _prob_at(8),
    "prob_16": _prob_at(16),
    "prob_last": _prob_last,
    "certain_length": _certain,
    "shared": lambda inputs: inputs.obs.shared,
    "prompt_length": lambda inputs: inputs.obs.prompt_length,
    "generated_length": lambda inputs: inputs.obs.generated_length,
    "generated_share": lambda inputs: (
        inputs.obs.generated_length
        / np.maximum(inputs.obs.prompt_length + inputs.obs.generated_length, 1)
    ),
}
HISTORY_FEATURES: dict[str, Column] = {
    f"history_{name}": _history(index) for index, name in enumerate(HISTORY_COLUMNS)
}
TOKEN_FEATURES: dict[str, Column] = {
    f"{part}_{flag}": _flag(part, index)
    for part in ("draft", "first", "last")
    for index, flag in enumerate(FLAGS)
}
FEATURES: dict[str, Column] = {**DRAFT_FEATURES, **HISTORY_FEATURES, **TOKEN_FEATURES}


class FeatureSet:
    """The features that one gate asks for, in its order."""

    def __init__(self, names: Sequence[str], table: TokenTable | None = None) -> None:
        """Look the names up.

        Args:
            names: keys of ``FEATURES``, in the gate's order.
            table: the target's token flags; needed by the names in ``TOKEN_FEATURES`` only.

        Raises:
            GateError: an unknown or repeated name (the valid ones are listed), none at all, or a
                token feature without a table.
        """
        unknown = [name for name in names if name not in FEATURES]
        if unknown:
            raise GateError(f"unknown features {unknown}; valid are {', '.join(FEATURES)}")
        if not names or len(set(names)) != len(names):
            raise GateError(f"features must be named once each, at least one; got {list(names)}")
        if table is None and any(name in TOKEN_FEATURES for name in names):
            raise GateError("token features need the target's token table: give one or drop them")
        self.names = tuple(names)
        self._columns = tuple(FEATURES[name] for name in names)
        self._table = table

    def __len__(self) -> int:
        return len(self.names)

    def compute(
        self, obs: Observations, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Feature matrix of ``obs``.

        Args:
            obs: the rows.
            out: float32 ``[rows, len(self)]`` to write into; a new array if not given.

        Returns:
            float32 ``[rows, len(self)]``.
        """
        matrix = np.empty((obs.rows, len(self)), np.float32) if out is None else out
        inputs = Inputs(obs, self._table)
        for index, column in enumerate(self._columns):
            matrix[:, index] = column(inputs)
        return matrix
