"""How long a decode step takes: a linear prior, corrected online by what steps really took.

Prior: ``base + row * rows + token * rows * width + context * context tokens``, and ``model`` if the
draft head's forward ran.
Every (rows bucket, width, model) cell keeps the recent ratios of measured to prior time; its
median corrects the prior there, shrunk towards the ratio of all steps while the cell is young.
Medians make single outliers (a step after idling, one interleaved with a prefill) harmless. Knows
no engine and reads no clock: it is told seconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from hybridspec.gate.errors import GateError

SCHEMA = 1
# Recent ratios kept per cell and over all steps; the weight of the overall ratio, in samples; how
# far from the overall ratio a step counts as an outlier. Choices: the CPU server's steps scatter by
# 2x when other processes share its cores; drift is followed within about ten steps of a cell.
_CELL_WINDOW, _ALL_WINDOW = 16, 64
_SHRINK = 2.0
_OUTLIER = 8.0
# A cell is young with fewer samples, stale when not observed for so many steps; how much faster it
# may then be taken to be. Choices: with one try in 64 steps, trying costs below one in a hundred.
_YOUNG, _STALE = 3, 512
_HOPE = 0.75


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds: per step, per verified token, per context token, per draft-head forward, per row."""

    base: float
    token: float
    context: float
    model: float
    row: float = 0.0

    def seconds(self, rows: int, width: int, context_tokens: int, model: bool) -> float:
        """The prior's time of one step."""
        forward = self.base + rows * (self.row + self.token * width) + self.context * context_tokens
        return forward + self.model if model else forward


PROFILES: dict[str, StepCost] = {
    # Llama-3.1-8B on an H100, arXiv 2601.11580: verify 3.93e-8 s per KV token, 2.10e-5 s per batch
    # token and 5.89e-3 s; 1.21e-3 s of overhead per step; EAGLE's draft 2.14e-3 s.
    "h100": StepCost(base=5.89e-3 + 1.21e-3, token=2.10e-5, context=3.93e-8, model=2.14e-3),
    # SmolLM2-135M, bfloat16, two CPU cores, portable runtime, context about 300: target steps of
    # rows x width = 1x1 / 1x8 / 1x16 / 1x32 / 8x1 / 8x4 / 8x8 / 8x16 / 8x32 took 50 / 57 / 67 /
    # 79 / 66 / 99 / 173 / 270 / 385 ms (fitted by eye, within a quarter); EAGLE3's draft steps took
    # a tenth of a step. Context was not varied: 0.
    "cpu": StepCost(base=50e-3, token=1.5e-3, context=0.0, model=6e-3),
}


class _Ratios:
    """The last ``size`` ratios in a ring, with their median kept ready."""

    __slots__ = ("_next", "_size", "_values", "median", "seen")

    def __init__(self, size: int) -> None:
        self._size = size
        self.seen = 0
        self._values: list[float] = []
        self._next = 0
        self.median = 1.0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, ratio: float) -> None:
        if len(self._values) < self._size:
            self._values.append(ratio)
        else:
            self._values[self._next] = ratio
            self._next = (self._next + 1) % self._size
        self.median = median(self._values)


class StepTimeModel:
    """Step time as a function of rows, width, context and draft-head forward. Not thread-safe."""

    def __init__(self, prior: StepCost) -> None:
        self.prior = prior
        self._all = _Ratios(_ALL_WINDOW)
        self._cells: dict[tuple[int, int, bool], _Ratios] = {}
        self._extend_share = _Ratios(_ALL_WINDOW)
        self._extend_share.median = 0.0
        self._observed = 0
        self.outliers = 0

    @classmethod
    def from_profile(cls, name: str) -> StepTimeModel:
        """The model of a built-in profile.

        Raises:
            GateError: an unknown name (the valid ones are listed).
        """
        if name not in PROFILES:
            raise GateError(f"unknown step-time profile {name!r}; valid are {', '.join(PROFILES)}")
        return cls(PROFILES[name])

    def adopt(self, other: StepTimeModel) -> None:
        """Know what ``other`` knows, and forget the rest; those who hold this one go on with it."""
        self.prior, self._all, self._cells = other.prior, other._all, other._cells
        self._extend_share = other._extend_share

    @property
    def extend_share(self) -> float:
        """Share of a step that the draft head's draft-extend takes; 0 until it was observed."""
        return self._extend_share.median

    def predict(self, rows: int, width: int, context_tokens: int, model: bool) -> float:
        """Seconds of a step that verifies ``width`` tokens in each of ``rows`` rows.

        Args:
            rows: running requests of the step.
            width: verified tokens per row, root token included.
            context_tokens: KV tokens of all rows together.
            model: whether the draft head's forward runs.

        Returns:
            Seconds, the draft-extend after the step included.
        """
        ratio = self._all.median
        cell = self._cells.get((_bucket(rows), width, model))
        if cell is not None:
            count = len(cell)
            ratio = (cell.median * count + ratio * _SHRINK) / (count + _SHRINK)
        return self.prior.seconds(rows, width, context_tokens, model) * ratio

    def observe(
        self,
        rows: int,
        width: int,
        context_tokens: int,
        model: bool,
        seconds: float,
        extend: float | None = None,
    ) -> None:
        """Learn from one step; steps far from what is expected are counted as outliers and ignored,
        unless nothing is known yet or they persist.

        Args:
            rows: as for :meth:`predict`, as are the next three.
            width: as above.
            context_tokens: as above.
            model: as above.
            seconds: measured, with the draft-extend, if one followed.
            extend: seconds of that draft-extend alone, where they are known; 0: none followed.
        """
        if not seconds > 0.0:
            return
        if extend == 0.0:
            seconds /= 1.0 - self.extend_share
        elif extend is not None and not model and extend < seconds:
            self._extend_share.add(extend / seconds)
        self._observed += 1
        ratio = seconds / self.prior.seconds(rows, width, context_tokens, model)
        self._all.add(ratio)
        expected = self._all.median
        if len(self._all) >= 8 and not expected / _OUTLIER < ratio < expected * _OUTLIER:
            self.outliers += 1
            return
        key = (_bucket(rows), width, model)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Ratios(_CELL_WINDOW)
        cell.add(ratio)
        cell.seen = self._observed

    def is_stale(self, rows: int, width: int, model: bool) -> bool:
        """Whether steps of this shape were hardly or long not observed."""
        cell = self._cells.get((_bucket(rows), width, model))
        return cell is None or len(cell) < _YOUNG or self._observed - cell.seen > _STALE

    def save(self, path: Path) -> None:
        """Write the prior and the learned ratios as JSON."""
        cells = [[*key, cell.median, len(cell)] for key, cell in self._cells.items()]
        content = {
            "schema": SCHEMA,
            "prior": asdict(self.prior),
            "overall": self._all.median,
            "extend_share": self.extend_share,
        }
        path.write_text(json.dumps({**content, "cells": cells}, indent=1))

    @classmethod
    def load(cls, path: Path) -> StepTimeModel:
        """Read what :meth:`save` wrote.

        Raises:
            GateError: the file is missing, is no profile, or has another schema version.
        """
        try:
            return cls._from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            raise GateError(f"step-time profile: no file at {path}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise GateError(f"step-time profile {path} cannot be used: {error}") from None

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> StepTimeModel:
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this version reads {SCHEMA}")
        known = content["prior"]
        prior = StepCost(**{f.name: float(known.get(f.name, f.default)) for f in fields(StepCost)})
        made = cls(prior)
        made._all.add(float(content["overall"]))
        made._extend_share.median = float(content.get("extend_share", 0.0))
        for rows, width, model, ratio, count in content["cells"]:
            cell = made._cells[(int(rows), int(width), bool(model))] = _Ratios(_CELL_WINDOW)
            for _ in range(min(int(count), _CELL_WINDOW)):
                cell.add(float(ratio))
        return made


class Hopeful:
    """The same step times, but shapes that were hardly or long not observed are taken to be faster.

    A policy that now and then decides by these tries what it would otherwise leave alone for ever
    after one unlucky measurement.
    """

    def __init__(self, cost: StepTimeModel) -> None:
        self._cost = cost

    @property
    def extend_share(self) -> float:
        """As the model's."""
        return self._cost.extend_share

    def predict(self, rows: int, width: int, context_tokens: int, model: bool) -> float:
        """As the model's, in hope."""
        seconds = self._cost.predict(rows, width, context_tokens, model)
        return _HOPE * seconds if self._cost.is_stale(rows, width, model) else seconds


def _bucket(rows: int) -> int:
    """Rows rounded up to a power of two, so that neighbours share their measurements."""
    return 1 << (rows - 1).bit_length()
