"""Carries each step's plan from the first tensor-parallel rank to the others.

One rank follows requests, asks the suffix cache and the gate, and decides; the others carry out the
same plan. So ranks cannot decide apart, and what depends on time (step times, a new gate) needs no
agreement of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import distributed
from torch.distributed import ProcessGroup

from hybridspec.adapters.sglang.deferral import Extend
from hybridspec.adapters.sglang.step_plan import StepPlan

_HEAD = 5
_COLUMNS = 3
_EXTENDS = tuple(Extend)


class PlanChannel:
    """Both ends; every rank of the group must call for every decode step, in order."""

    def __init__(self, group: ProcessGroup, leader: int, widest: int) -> None:
        """Set up an end.

        Args:
            group: all ranks, on the host.
            leader: global rank of the one that decides.
            widest: the largest verify width.
        """
        self._group, self._leader, self._room = group, leader, widest - 1
        self.leads = distributed.get_rank() == leader

    def send(self, plan: StepPlan) -> None:
        """Tell the other ranks the plan of this step."""
        self._broadcast(pack(plan, self._room))

    def receive(self, rows: int) -> StepPlan:
        """The leader's plan of a step of ``rows`` requests."""
        message = np.zeros(_HEAD + rows * (_COLUMNS + self._room), np.int32)
        self._broadcast(message)
        return unpack(message, rows)

    def _broadcast(self, message: np.ndarray) -> None:
        distributed.broadcast(torch.from_numpy(message), src=self._leader, group=self._group)


def pack(plan: StepPlan, room: int) -> np.ndarray:
    """A plan as int32 ``[5 + rows * (3 + room)]``; its size depends on the rows alone, so that the
    receivers know it. ``room``: most draft tokens of a row."""
    rows = len(plan.source)
    message = np.zeros(_HEAD + rows * (_COLUMNS + room), np.int32)
    message[:_HEAD] = (
        plan.width,
        plan.model_length,
        plan.model_forward,
        _EXTENDS.index(plan.extend),
        plan.branch is not None,
    )
    body = message[_HEAD:].reshape(rows, _COLUMNS + room)
    body[:, 0], body[:, 1] = plan.source, plan.length
    if plan.branch is not None:
        body[:, 2] = plan.branch
    body[:, _COLUMNS : _COLUMNS + plan.width - 1] = plan.tokens
    return message


def unpack(message: np.ndarray, rows: int) -> StepPlan:
    """What :func:`pack` made of a plan of ``rows`` requests."""
    width, model_length, model_forward, extend, merges = message[:_HEAD].tolist()
    body = message[_HEAD:].reshape(rows, -1)
    return StepPlan(
        width=width,
        source=body[:, 0].astype(np.int8),
        length=body[:, 1].copy(),
        tokens=body[:, _COLUMNS : _COLUMNS + width - 1].copy(),
        model_length=model_length,
        model_forward=bool(model_forward),
        branch=body[:, 2].copy() if merges else None,
        extend=_EXTENDS[extend],
    )
