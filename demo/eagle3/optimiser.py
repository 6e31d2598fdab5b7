"""Muon for the head's matrices, AdamW for the rest, as one optimiser with one learning rate.

Muon orthogonalises each matrix's momentum by a few Newton-Schulz steps (Jordan et al. 2024, "Muon:
an optimizer for hidden layers"); the update is scaled to AdamW's typical size so that one rate fits
both (Liu et al. 2025, arXiv 2502.16982). It needs fewer tokens than AdamW, and tokens are what a
CPU lacks.

This module knows nothing of heads: the caller says which parameters are matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Quintic whose repeated application drives singular values to about one (the authors' constants).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
_MATCH_ADAM = 0.2


def orthogonalised(matrix: Tensor) -> Tensor:
    """The nearest matrix with all singular values near one, in bfloat16."""
    a, b, c = _COEFFICIENTS
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    back: Tensor = x.T if tall else x
    return back


class MuonAdamW(torch.optim.Optimizer):
    """Two groups: ``matrices`` updated by Muon, ``others`` by AdamW, at the same rate."""

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        weight_decay: float = 0.01,
    ) -> None:
        groups = [
            {"params": list(matrices), "muon": True},
            {"params": list(others), "muon": False},
        ]
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "betas": betas,
            "weight_decay": weight_decay,
            "count": 0,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = self._muon if group["muon"] else self._adam
                change = update(parameter, group)
                if parameter.ndim > 1:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(change.to(parameter.dtype), alpha=-group["lr"])

    def _muon(self, parameter: Tensor, group: dict[str, float]) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
        ahead = parameter.grad.lerp(state["momentum"], group["momentum"])
        scale = _MATCH_ADAM * max(parameter.shape) ** 0.5
        update: Tensor = orthogonalised(ahead) * scale
        return update

    def _adam(self, parameter: Tensor, group: dict[str, tuple[float, float]]) -> Tensor:
        assert parameter.grad is not None
        state, (first, second), count = self.state[parameter], group["betas"], group["count"]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["mean"].lerp_(parameter.grad, 1 - first)
        state["square"].lerp_(parameter.grad.square(), 1 - second)
        mean = state["mean"] / (1 - first**count)  # type: ignore[operator]
        square = state["square"] / (1 - second**count)  # type: ignore[operator]
        update: Tensor = mean / (square.sqrt() + 1e-8)
        return update
