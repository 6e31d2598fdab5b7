"""The gate of arXiv 2606.01019, as a baseline: two hidden layers of 256, ReLU, mean squared error.

Trained as the paper says (batches of 65,536, 20 epochs, learning rate 1e-3), on this project's
features, scaled as this project's gate scales them. Not exported: it is here to be compared with.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

HIDDEN, BATCH, EPOCHS, RATE = 256, 65_536, 20, 1e-3
# The paper's data hold millions of positions; with fewer, as many updates need more epochs.
LEAST_UPDATES = 400


def fit_and_predict(
    matrix: NDArray[np.float32],
    accepted: NDArray[np.int32],
    rows: NDArray[np.float32],
    seed: int = 0,
) -> NDArray[np.float32]:
    """Train on ``matrix`` ``[n, features]`` and ``accepted`` ``[n]``; predict ``rows``.

    Returns:
        float32 ``[rows]``, expected accepted lengths.
    """
    torch.manual_seed(seed)
    logs = torch.log1p(torch.from_numpy(matrix).clamp(min=0.0))
    mean, deviation = logs.mean(dim=0), logs.std(dim=0).clamp(min=1e-6)
    inputs, labels = (logs - mean) / deviation, torch.from_numpy(accepted.astype(np.float32))
    model = nn.Sequential(
        *(nn.Linear(matrix.shape[1], HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, 1),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    batches = -(-len(matrix) // BATCH)
    for _ in range(max(EPOCHS, -(-LEAST_UPDATES // batches))):
        for index in torch.split(torch.randperm(len(inputs)), BATCH):
            loss = nn.functional.mse_loss(model(inputs[index])[:, 0], labels[index])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    with torch.no_grad():
        asked = (torch.log1p(torch.from_numpy(rows).clamp(min=0.0)) - mean) / deviation
        predicted: NDArray[np.float32] = model(asked)[:, 0].clamp(min=0.0).numpy()
    return predicted
