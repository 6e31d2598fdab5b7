"""Verify inputs for chains of one width: every row is a root (bonus) token and its draft.

Rows that propose less than the width are padded; the chain's links end at the row's own length, so
padding can never be accepted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from hybridspec.adapters.sglang import tree_masks


class ChainBuilder:
    """Builds ``EagleVerifyInput`` objects on one device."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device

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
        mask, positions, index, following, sibling, tokens = self._links(
            bonus_tokens.long(), draft, seq_lens, seq_lens_sum, backend
        )
        if width > 1:
            limits = torch.from_numpy(lengths).to(self._device, torch.int64, non_blocking=True)
            steps = torch.arange(width, device=self._device)
            following = torch.where(steps < limits[:, None], steps + 1, -1)
        return EagleVerifyInput(
            draft_token=tokens.view(rows * width),
            custom_mask=mask,
            positions=positions,
            retrieve_index=index,
            retrieve_next_token=following,
            retrieve_next_sibling=sibling,
            retrieve_cum_len=None,
            spec_steps=width - 1,
            topk=1,
            draft_token_num=width,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )

    def _links(
        self,
        bonus: torch.Tensor,
        draft: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_sum: int | None,
        backend: Any,
    ) -> tuple[torch.Tensor, ...]:
        rows, width = draft.shape[0], draft.shape[1] + 1
        if tree_masks.own(backend):
            steps = torch.arange(width, device=self._device)
            mask = (steps[:, None] >= steps).expand(rows, -1, -1).reshape(-1)
            index = torch.arange(rows * width, device=self._device).view(rows, width)
            none = torch.full((rows, width), -1, dtype=torch.int64, device=self._device)
            positions = (seq_lens[:, None] + steps).reshape(-1)
            return mask, positions, index, none, none, torch.cat((bonus[:, None], draft), dim=1)
        tokens = torch.cat((bonus[:, None], draft), dim=1)
        before = torch.arange(-1, width - 1, device=self._device).expand(rows, -1)
        return tree_masks.built(tokens, before, seq_lens, seq_lens_sum, backend)
