"""Fitting the gate's network. Knows matrices and labels, not traces, trees or files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridspec.gate.errors import GateError
from hybridspec.gate.model import GateModel

LENGTH_FEATURE = "draft_length"


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How to fit. Defaults: reasonable on four public trace sets, 320,000 rows; no search."""

    hidden: tuple[int, ...] = (128, 128)
    epochs: int = 40
    patience: int = 5
    batch: int = 2048
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    validation: float = 0.15
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained network, the loss of its best epoch on the validation groups, and that epoch."""

    model: GateModel
    loss: float
    epoch: int


def split_groups(
    group: NDArray[np.integer], share: float, seed: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks (rest, chosen) that put about ``share`` of the groups, whole, into ``chosen``.

    Rows of one request resemble each other: splitting them would flatter any figure.
    """
    groups = np.unique(group)
    count = max(1, round(len(groups) * share)) if len(groups) > 1 else 0
    picked = np.random.default_rng(seed).permutation(groups)[:count]
    chosen = np.isin(group, picked)
    return ~chosen, chosen


def survival_loss(log_survival: Tensor, accepted: Tensor, length: Tensor) -> Tensor:
    """Mean binary cross-entropy of the curve, over the positions inside each draft.

    Args:
        log_survival: float32 ``[n, k]``.
        accepted: float32 ``[n, 1]``; position j is positive if ``accepted > j``.
        length: float32 ``[n, 1]``; positions from there on are certain, and left out.
    """
    position = torch.arange(log_survival.shape[1], dtype=torch.float32)
    # log(1 - S) by expm1; the floor keeps a certain S from an infinite loss.
    log_failure = torch.log(-torch.expm1(log_survival.clamp(max=-1e-6)))
    loss = -torch.where(position < accepted, log_survival, log_failure)
    inside = (position < length).to(loss.dtype)
    return (loss * inside).sum() / inside.sum().clamp(min=1.0)


def fit(
    matrix: NDArray[np.float32],
    accepted: NDArray[np.int32],
    group: NDArray[np.int32],
    features: Sequence[str],
    k: int,
    settings: TrainSettings | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Fit:
    """Train a gate with early stopping on whole held-out groups.

    Args:
        matrix: float32 ``[rows, len(features)]``.
        accepted: int32 ``[rows]``, labels.
        group: int32 ``[rows]``, request of each row.
        features: names of the columns; must hold ``draft_length``.
        k: length of the survival curve.
        settings: how.
        progress: told (epoch, validation loss) after each epoch.

    Raises:
        GateError: no rows, only one request, or no ``draft_length`` among the features.
    """
    settings = settings or TrainSettings()
    if LENGTH_FEATURE not in features:
        raise GateError(f"training: the feature {LENGTH_FEATURE!r} is needed to bound the curve")
    if len(np.unique(group)) < 2:
        raise GateError(
            f"training: {len(matrix)} rows of {len(np.unique(group))} requests are too few; "
            "collect more traces"
        )
    torch.manual_seed(settings.seed)
    column = list(features).index(LENGTH_FEATURE)
    rest, held = split_groups(group, settings.validation, settings.seed)
    data = [_tensors(matrix[mask], accepted[mask], column) for mask in (rest, held)]
    model = GateModel(len(features), k, column, settings.hidden)
    model.fit_scaling(data[0][0])
    return _descend(model, data[0], data[1], settings, progress)


def predict(model: GateModel, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """The model's survival curves, float32 ``[rows, k]``, for ``matrix`` ``[rows, features]``."""
    with torch.no_grad():
        survival: NDArray[np.float32] = model(torch.from_numpy(matrix))[0].numpy()
    return survival


_Rows = tuple[Tensor, Tensor, Tensor]


def _tensors(matrix: NDArray[np.float32], accepted: NDArray[np.int32], column: int) -> _Rows:
    rows = torch.from_numpy(np.ascontiguousarray(matrix))
    labels = torch.from_numpy(accepted.astype(np.float32))[:, None]
    return rows, labels, rows[:, column : column + 1]


def _descend(
    model: GateModel,
    train: _Rows,
    held: _Rows,
    settings: TrainSettings,
    progress: Callable[[int, float], None] | None,
) -> Fit:
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    best = Fit(copy.deepcopy(model), float("inf"), -1)
    for epoch in range(settings.epochs):
        model.train()
        order = torch.randperm(len(train[0]))
        for start in range(0, len(order), settings.batch):
            index = order[start : start + settings.batch]
            rows, labels, length = (part[index] for part in train)
            loss = survival_loss(model.log_survival(rows), labels, length)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        model.eval()
        with torch.no_grad():
            score = float(survival_loss(model.log_survival(held[0]), held[1], held[2]))
        if progress is not None:
            progress(epoch, score)
        if score < best.loss:
            best = Fit(copy.deepcopy(model), score, epoch)
        elif epoch - best.epoch >= settings.patience:
            break
    return best
