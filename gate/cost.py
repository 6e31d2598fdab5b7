"""How long a decode step takes: a linear prior, corrected online by what steps really took.

Prior: ``base + row * rows + token * rows * width + (context + attention * width) * context
tokens``, and ``model`` if the draft head's forward ran.
Two factors correct it: one of the machine (other work slows every step alike) and one of every
(rows bucket, width, model) cell. Each step's error moves both, the machine's faster, and is clipped
first, so that single outliers (a step after idling, one interleaved with a prefill) are harmless.
A cell that is not visited so keeps its place among the others while the machine's speed changes.
Knows no engine and reads no clock: it is told seconds.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hybridspec.gate.errors import GateError

SCHEMA = 2
# Shares of a step's error (in logarithms) that move the machine's factor and the cell's; where the
# error is clipped. Of 666 served steps on two shared CPU cores these foretold half within 3% and
# 80% within 7%; medians of each cell, without a factor of the machine, within 4% and 14%.
_MACHINE_GAIN, _CELL_GAIN = 0.2, 0.05
_NEW_GAIN = 0.4
"""Of a cell without samples; falls with their number."""
_CLIP = 0.2
_FIRST = 8
"""Steps of which each counts in full, so that a prior of another scale is left at once."""
_OUTLIER = math.log(8.0)
"""Errors beyond are ignored, until ``_FIRST`` follow one another."""
# Of a cell's first measurement, the share of its deviation from the prior that is believed. The
# same steps' times relative to one another: off by 3.8% (median) with a half, 5.2% with all.
_TRUST = 0.5
# A cell is young with fewer samples, stale when not observed for so many steps; how much faster it
# may then be taken to be. Choices: with one try in 64 steps, trying costs below one in a hundred.
_YOUNG, _STALE = 3, 512
_HOPE = 0.75
_SHARE_GAIN = 1.0 / 32.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds: per step, verified token, context token, draft-head forward and row, and per context
    token and width."""

    base: float
    token: float
    context: float
    model: float
    row: float = 0.0
    attention: float = 0.0

    def seconds(self, rows: int, width: int, context_tokens: int, model: bool) -> float:
        """The prior's time of one step."""
        tokens = rows * (self.row + self.token * width)
        attention = context_tokens * (self.context + self.attention * width)
        forward = self.base + tokens + attention
        return forward + self.model if model else forward


PROFILES: dict[str, StepCost] = {
    # Llama-3.1-8B on an H100, arXiv 2601.11580: verify 3.93e-8 s per KV token, 2.10e-5 s per batch
    # token and 5.89e-3 s; 1.21e-3 s of overhead per step; EAGLE's draft 2.14e-3 s.
    "h100": StepCost(base=5.89e-3 + 1.21e-3, token=2.10e-5, context=3.93e-8, model=2.14e-3),
    # SmolLM2-135M, bfloat16, two CPU cores, portable runtime, context about 300: target steps of
    # rows x width = 1x1 / 1x8 / 1x16 / 1x32 / 8x1 / 8x4 / 8x8 / 8x16 / 8x32 took 50 / 57 / 67 /
    # 79 / 66 / 99 / 173 / 270 / 385 ms (fitted by eye, within a quarter); EAGLE3's draft steps took
    # a tenth of a step. Contexts of 1,200 tokens took 3 us a token longer, and 0.5 us a token and
    # width.
    "cpu": StepCost(base=50e-3, token=1.5e-3, context=3e-6, model=6e-3, attention=5e-7),
}


@dataclass(slots=True)
class _Cell:
    """What is known of one shape: its factor's logarithm, samples, and the last one's number."""

    log: float = 0.0
    count: int = 0
    seen: int = 0


class StepTimeModel:
    """Step time as a function of rows, width, context and draft-head forward. Not thread-safe."""

    def __init__(self, prior: StepCost) -> None:
        self.prior = prior
        self._machine = 0.0
        self._cells: dict[tuple[int, int, bool], _Cell] = {}
        self._extend_share = 0.0
        self._extends = 0
        self._observed = 0
        self._astray = 0
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

    @classmethod
    def named(cls, profile: str) -> StepTimeModel:
        """The model of a built-in profile's name, or of a file that :meth:`save` wrote.

        Raises:
            GateError: neither.
        """
        path = Path(profile)
        return cls.load(path) if path.suffix else cls.from_profile(profile)

    def adopt(self, other: StepTimeModel) -> None:
        """Know what ``other`` knows, and forget the rest; those who hold this one go on with it."""
        self.__dict__.update(other.__dict__)

    @property
    def extend_share(self) -> float:
        """Share of a step that the draft head's draft-extend takes; 0 until it was observed."""
        return self._extend_share

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
        seconds = self.prior.seconds(rows, width, context_tokens, model)
        cell = self._cells.get((_bucket(rows), width, model))
        return seconds * math.exp(self._machine + (cell.log if cell is not None else 0.0))

    def start(
        self, rows: int, width: int, context_tokens: int, model: bool, seconds: float
    ) -> None:
        """Take in a first measurement of a shape, by half: arguments as for :meth:`observe`."""
        ratio = seconds / self.prior.seconds(rows, width, context_tokens, model)
        self._observed = max(self._observed, _FIRST)  # the scale is known
        known = _Cell(_TRUST * math.log(ratio), _YOUNG, self._observed)
        self._cells[(_bucket(rows), width, model)] = known

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
            self.observe_extend(extend / seconds)
        error = math.log(seconds / self.predict(rows, width, context_tokens, model))
        self._observed += 1
        first = self._observed <= _FIRST
        if not first and not self._credible(error):
            self.outliers += 1
            return
        key = (_bucket(rows), width, model)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        gain = max(_CELL_GAIN, _NEW_GAIN / (cell.count + 1))
        cell.count += 1
        cell.seen = self._observed
        if first:
            self._machine += error / self._observed
        else:
            error = min(max(error, -_CLIP), _CLIP)
            self._machine += _MACHINE_GAIN * error
        cell.log += gain * error

    def observe_extend(self, share: float) -> None:
        """Learn from one draft-extend, its share of its step's time."""
        self._extends += 1
        self._extend_share += max(_SHARE_GAIN, 1.0 / self._extends) * (share - self._extend_share)

    def _credible(self, error: float) -> bool:
        """Whether a step's error counts: not far off, or as far as those before it."""
        self._astray = self._astray + 1 if abs(error) > _OUTLIER else 0
        return self._astray == 0 or self._astray > _FIRST

    def is_stale(self, rows: int, width: int, model: bool) -> bool:
        """Whether steps of this shape were hardly or long not observed."""
        cell = self._cells.get((_bucket(rows), width, model))
        return cell is None or cell.count < _YOUNG or self._observed - cell.seen > _STALE

    def save(self, path: Path) -> None:
        """Write the prior and the learned factors as JSON."""
        cells = [[*key, math.exp(cell.log), cell.count] for key, cell in self._cells.items()]
        content = {
            "schema": SCHEMA,
            "prior": asdict(self.prior),
            "machine": math.exp(self._machine),
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
        made._machine = math.log(float(content["machine"]))
        made._extend_share = float(content["extend_share"])
        made._extends, made._observed = _FIRST, _FIRST
        for rows, width, model, factor, count in content["cells"]:
            cell = _Cell(math.log(float(factor)), int(count), _FIRST)
            made._cells[(int(rows), int(width), bool(model))] = cell
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
