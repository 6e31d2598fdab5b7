"""The gate's network: features in, survival curve out. Knows no data, training or files."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GateModel(nn.Module):
    """MLP whose output is non-increasing by construction.

    Each logit is the log-odds that the next draft token is accepted given that all before it were;
    the curve is ``exp(cumsum(logsigmoid(logits)))``. (``cumprod`` of sigmoids is the same curve,
    but has no ONNX export and is the worse conditioned.) Positions beyond the draft's own length
    are zero. Scaling is part of the graph: log1p, then mean and deviation of the training rows.
    """

    mean: Tensor
    scale: Tensor
    position: Tensor

    def __init__(
        self, features: int, k: int, length_column: int, hidden: tuple[int, ...] = (64, 64)
    ) -> None:
        """``features`` input columns, ``draft_length`` in ``length_column``; ``k`` outputs."""
        super().__init__()
        self.length_column = length_column
        self.hidden = hidden
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("position", torch.arange(k, dtype=torch.float32))
        layers: list[nn.Module] = []
        width = features
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, k))

    def fit_scaling(self, rows: Tensor) -> None:
        """Set mean and deviation from training ``rows`` (float32 ``[n, features]``)."""
        logs = torch.log1p(rows.clamp(min=0.0))
        deviation = logs.std(dim=0, unbiased=False)
        self.mean.copy_(logs.mean(dim=0))
        # A constant column carries nothing: leave it unscaled.
        self.scale.copy_(torch.where(deviation > 1e-6, 1.0 / deviation.clamp(min=1e-6), 1.0))

    def log_survival(self, rows: Tensor) -> Tensor:
        """log P(at least j+1 accepted), length not yet applied: float32 ``[n, k]``, <= 0."""
        scaled = (torch.log1p(rows.clamp(min=0.0)) - self.mean) * self.scale
        logits = self.layers(scaled)
        return torch.cumsum(nn.functional.logsigmoid(logits), dim=1)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """float32 ``[n, features]`` -> survival ``[n, k]``, accepted length ``[n]``."""
        length = rows[:, self.length_column : self.length_column + 1]
        inside = (self.position < length).to(rows.dtype)
        survival = torch.exp(self.log_survival(rows)) * inside
        return survival, survival.sum(dim=1)
