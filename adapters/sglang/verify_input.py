"""What SGLang verifies: trees of draft tokens, all rows of one width."""

from __future__ import annotations

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput


def verify_input(
    tokens: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    child: torch.Tensor,
    sibling: torch.Tensor,
    branches: int,
) -> EagleVerifyInput:
    """SGLang's object for trees as deep as they are wide.

    Args:
        tokens: int64 ``[rows, width]``, node 0 the root (bonus) token.
        mask: as the attention backend takes it (see :mod:`.tree_masks`).
        positions: int64 ``[rows * width]``.
        child: int64 ``[rows, width]``, each node's first child, -1 for none.
        sibling: int64 ``[rows, width]``, and next sibling.
        branches: most children of a node.
    """
    rows, width = tokens.shape
    return EagleVerifyInput(
        draft_token=tokens.reshape(-1),
        custom_mask=mask,
        positions=positions,
        retrieve_index=torch.arange(rows * width, device=tokens.device).view(rows, width),
        retrieve_next_token=child,
        retrieve_next_sibling=sibling,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=branches,
        draft_token_num=width,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
