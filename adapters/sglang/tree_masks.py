"""The mask with which an attention backend verifies draft trees: the draft's own part, or SGLang's.

Backends that take a mask of the draft alone get it from us. For other layouts (the context
included, bits packed, a buffer of a captured graph) SGLang's own builder is given the tree in its
own terms.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.speculative.eagle_utils import (
    TreeMaskMode,
    build_tree_kernel_efficient,
    default_tree_mask_mode,
)


def own(backend: Any) -> bool:
    """Whether ``backend`` takes bool ``[rows * width * width]``, the draft's own part."""
    return backend.verify_mask is None and default_tree_mask_mode() == TreeMaskMode.QLEN_ONLY


def built(
    tokens: torch.Tensor,
    parent: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_lens_sum: int | None,
    backend: Any,
) -> tuple[torch.Tensor, ...]:
    """SGLang's mask, positions, index, first child, next sibling and flat tokens of trees in which
    no node but the root has more than two children.

    Args:
        tokens: int64 ``[rows, width]``, node 0 the root.
        parent: int64 ``[rows, width]``, an earlier node; what it says of the root is ignored.
        seq_lens: int64 ``[rows]``, committed tokens without the root.
        seq_lens_sum: their sum, where the host knows it.
        backend: the target's attention backend.
    """
    rows, width = tokens.shape
    verify_mask = backend.verify_mask
    mode = verify_mask.mode if verify_mask is not None else default_tree_mask_mode()
    buffer = verify_mask.buffer if verify_mask is not None and verify_mask.fits(rows) else None
    if seq_lens_sum is None:
        # It sizes a mask that holds the context. More is safe; asking the device would wait.
        full = buffer is None and mode == TreeMaskMode.FULL_MASK
        seq_lens_sum = rows * backend.max_context_len if full else 0
    # The builder numbers a node so that half its number is a place in the parents' table, which
    # holds the parent's number; place 0 is the root.
    number = 2 * torch.arange(width, device=tokens.device).expand(rows, -1)
    below_root = parent[:, 1:] == 0
    later = torch.cumsum(below_root, dim=1) > 1
    number = torch.cat((number[:, :1], torch.where(below_root, later.long(), number[:, 1:])), dim=1)
    table = number.gather(1, parent.clamp(min=0))
    made: tuple[torch.Tensor, ...] = build_tree_kernel_efficient(
        tokens[:, 0],
        _padded(table, 2 * (width // 2) + 1),
        number[:, 1:],
        tokens[:, 1:],
        seq_lens,
        seq_lens_sum,
        2,
        width // 2 + 1,
        width,
        mode,
        buffer,
        verify_mask is None or verify_mask.is_read,
    )
    return made


def _padded(table: torch.Tensor, columns: int) -> torch.Tensor:
    """The builder derives the table's row length from the tree's depth."""
    return torch.nn.functional.pad(table, (0, columns - table.shape[1])).contiguous()
