"""Named features over :class:`Observations`, vectorised over rows.

Values are raw counts and probabilities, all >= 0: scaling belongs to the model's graph, and plain
arithmetic is bit-equal in replay and server whatever the batch. Knows no model and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.history import HISTORY_COLUMNS
from hybridspec.gate.observations import Observations
from hybridspec.gate.tokens import FLAGS, TokenTable


class Inputs:
    """Observations plus the token table. A block is a matrix that several features are columns
    of."""

    def __init__(self, obs: Observations, table: TokenTable | None) -> None:
        self.obs = obs
        self._table = table

    @property
    def history(self) -> NDArray[np.float32]:
        """float32 ``[rows, len(HISTORY_COLUMNS)]``."""
        return self.obs.history

    @property
    def probs(self) -> NDArray[np.float32]:
        """float32 ``[rows, at least the last of PROB_POSITIONS]``, 0 beyond the drafts."""
        probs = self.obs.probs
        missing = PROB_POSITIONS[-1] - probs.shape[1]
        return probs if missing <= 0 else np.pad(probs, ((0, 0), (0, missing)))

    @property
    def flags(self) -> NDArray[np.float32]:
        """float32 ``[rows, 3 * len(FLAGS)]``: the share of the draft's tokens with each flag, the
        flags of the draft's first token, and those of the context's newest token."""
        assert self._table is not None  # FeatureSet checks it
        draft = self._table.words(self.obs.tokens)
        words = np.empty((self.obs.rows, 3), np.uint64)
        np.add.reduce(draft, axis=1, out=words[:, 0])
        words[:, 1] = draft[:, 0]
        words[:, 2] = self._table.words(self.obs.last_token)
        flags = self._table.flags_of(words).astype(np.float32)
        flags[:, 0] /= np.maximum(self.obs.length, np.float32(1))[:, None]
        return flags.reshape(len(flags), len(_FLAGGED) * len(FLAGS))


Values = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.integer] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """A feature computed for itself: ``[rows]`` values."""

    values: Callable[[Inputs], Values]


@dataclass(frozen=True, slots=True)
class Member:
    """A feature that is column ``index`` of the block of that name of :class:`Inputs`."""

    block: str
    index: int


def _prob_last(inputs: Inputs) -> Values:
    probs = inputs.obs.probs
    at = np.maximum(inputs.obs.length, 1)
    at += np.arange(-1, probs.size - 1, probs.shape[1], dtype=np.int32)
    return probs.take(at)


def _certain(inputs: Inputs) -> Values:
    # Draft tokens before the first branch: up to there every earlier occurrence agreed. Path
    # probabilities never rise, and 0 follows the draft.
    probs = inputs.obs.probs
    branch = (probs < probs[:, :1]).argmax(axis=1)
    return np.where(branch, branch, inputs.obs.length)


_FLAGGED = ("draft", "first", "last")
_BLOCK_WIDTHS = {"history": len(HISTORY_COLUMNS), "flags": len(_FLAGGED) * len(FLAGS)}

PROB_POSITIONS = (1, 2, 4, 8, 16)
"""Draft positions whose path probabilities are features."""

DRAFT_FEATURES: dict[str, Column | Member] = {
    "score": Column(lambda inputs: inputs.obs.score),
    "match_length": Column(lambda inputs: inputs.obs.match_length),
    "draft_length": Column(lambda inputs: inputs.obs.length),
    "score_share": Column(lambda inputs: inputs.obs.score / np.maximum(inputs.obs.length, 1)),
    **{f"prob_{position}": Member("probs", position - 1) for position in PROB_POSITIONS},
    "prob_last": Column(_prob_last),
    "certain_length": Column(_certain),
    "shared": Column(lambda inputs: inputs.obs.shared),
    "prompt_length": Column(lambda inputs: inputs.obs.prompt_length),
    "generated_length": Column(lambda inputs: inputs.obs.generated_length),
    "generated_share": Column(
        lambda inputs: (
            inputs.obs.generated_length
            / np.maximum(inputs.obs.prompt_length + inputs.obs.generated_length, 1)
        )
    ),
}
HISTORY_FEATURES: dict[str, Column | Member] = {
    f"history_{name}": Member("history", index) for index, name in enumerate(HISTORY_COLUMNS)
}
TOKEN_FEATURES: dict[str, Column | Member] = {
    f"{part}_{flag}": Member("flags", first * len(FLAGS) + index)
    for first, part in enumerate(_FLAGGED)
    for index, flag in enumerate(FLAGS)
}
FEATURES: dict[str, Column | Member] = {**DRAFT_FEATURES, **HISTORY_FEATURES, **TOKEN_FEATURES}


@dataclass(frozen=True, slots=True)
class _Block:
    """Which columns of a block (None: all, in order) go to which places of the feature matrix."""

    name: str
    places: list[int] | slice
    columns: list[int] | None


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
        self._table = table
        self._columns: list[tuple[int, Column]] = []
        self._blocks: list[_Block] = []
        members: dict[str, list[tuple[int, int]]] = {}
        for at, name in enumerate(names):
            feature = FEATURES[name]
            if isinstance(feature, Column):
                self._columns.append((at, feature))
            else:
                members.setdefault(feature.block, []).append((at, feature.index))
        for name, pairs in members.items():
            columns = [column for _, column in pairs]
            whole = columns == list(range(_BLOCK_WIDTHS.get(name, 0)))
            places = _span([place for place, _ in pairs])
            self._blocks.append(_Block(name, places, None if whole else columns))

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
        for at, column in self._columns:
            matrix[:, at] = column.values(inputs)
        for block in self._blocks:
            values = getattr(inputs, block.name)
            if block.columns is not None:
                values = values.take(block.columns, axis=1)
            matrix[:, block.places] = values
        return matrix


def _span(places: list[int]) -> list[int] | slice:
    """The same places as a slice if they are neighbours: numpy copies those far faster."""
    first, count = places[0], len(places)
    return slice(first, first + count) if places == list(range(first, first + count)) else places
