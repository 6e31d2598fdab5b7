"""Verify inputs for chains of one width: every row is a root (bonus) token and its draft.

Rows that propose less than the width are padded; the chain's links end at the row's own length, so
padding can never be accepted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from hybridspec.adapters.sglang import tree_masks
from hybridspec.adapters.sglang.verify_input import verify_input


class ChainBuilder:
    """Builds ``EagleVerifyInput`` objects on one device."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._numberings: dict[int, tree_masks.Numbering] = {}

    def build(
        self,
        bonus_tokens: torch.Tensor,
        draft: torch.Tensor,
        lengths: NDArray[np.int32],
        seq_lens: torch.Tensor,
        seq_lens_sum: int | None,
        backend: Any,
    ) -> EagleVerifyInput:
        """Build the verify input of one step.

        Args:
            bonus_tokens: ``[rows]``, last committed token of each row, any integer dtype.
            draft: int64 ``[rows, width - 1]`` on the device, padded with any valid token id.
            lengths: int32 ``[rows]``, draft tokens that count in each row.
            seq_lens: int64 ``[rows]``, committed tokens of each row without the bonus token.
            seq_lens_sum: their sum, where the host knows it.
            backend: the target's attention backend, for its mask.
        """
        rows, width = draft.shape[0], draft.shape[1] + 1
        tokens = torch.cat((bonus_tokens.long()[:, None], draft), dim=1)
        steps = torch.arange(width, device=self._device)
        if tree_masks.own(backend):
            mask = (steps[:, None] >= steps).expand(rows, -1, -1).reshape(-1)
            positions = (seq_lens[:, None] + steps).reshape(-1)
        else:
            numbering = self._numbering(width).expand(rows)
            mask, positions = tree_masks.built(tokens, numbering, seq_lens, seq_lens_sum, backend)
        none = torch.full((rows, width), -1, dtype=torch.int64, device=self._device)
        child = none
        if width > 1:
            limits = torch.from_numpy(lengths).to(self._device, torch.int64, non_blocking=True)
            child = torch.where(steps < limits[:, None], steps + 1, -1)
        return verify_input(tokens, mask, positions, child, none, branches=1)

    def _numbering(self, width: int) -> tree_masks.Numbering:
        """One chain's, kept: it is the same in every step."""
        found = self._numberings.get(width)
        if found is None:
            before = torch.arange(-1, width - 1, device=self._device)[None, :]
            found = self._numberings[width] = tree_masks.Numbering.of(before)
        return found
