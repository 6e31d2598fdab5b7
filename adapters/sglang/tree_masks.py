"""The mask with which an attention backend verifies draft trees: the draft's own part, or SGLang's.

Backends that take a mask of the draft alone get it from us. For other layouts (the context
included, bits packed, a buffer of a captured graph) SGLang's own builder is given the tree in its
own terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.speculative.eagle_utils import (
    TreeMaskMode,
    build_tree_kernel_efficient,
    default_tree_mask_mode,
)
from torch.nn.functional import pad


def own(backend: Any) -> bool:
    """Whether ``backend`` takes bool ``[rows * width * width]``, the draft's own part."""
    return backend.verify_mask is None and default_tree_mask_mode() == TreeMaskMode.QLEN_ONLY


@dataclass(frozen=True, slots=True)
class Numbering:
    """Trees in the builder's terms: half a node's number is its place in the parents' table, which
    holds the parent's number; place 0 is the root.

    Attributes:
        numbers: int64 ``[trees, width - 1]``, of all nodes but the root.
        parents: int64 ``[trees, columns]``; the builder derives ``columns`` from the tree's depth.
    """

    numbers: torch.Tensor
    parents: torch.Tensor

    @classmethod
    def of(cls, parent: torch.Tensor) -> Numbering:
        """Number trees whose root has at most two children.

        ``parent``: int64 ``[trees, width]``, an earlier node; what it says of the root is ignored.
        """
        trees, width = parent.shape
        number = 2 * torch.arange(width, device=parent.device).expand(trees, -1)
        below_root = parent[:, 1:] == 0
        second = torch.cumsum(below_root, dim=1) > 1
        numbers = torch.where(below_root, second.long(), number[:, 1:])
        table = torch.cat((number[:, :1], numbers), dim=1).gather(1, parent.clamp(min=0))
        return cls(numbers, pad(table, (0, 2 * (width // 2) + 1 - width)))

    def expand(self, rows: int) -> Numbering:
        """The same tree in every row, whole: a CUDA kernel reads rows one after the other."""
        return Numbering(
            *(each.expand(rows, -1).contiguous() for each in (self.numbers, self.parents))
        )


def built(
    tokens: torch.Tensor,
    numbering: Numbering,
    seq_lens: torch.Tensor,
    seq_lens_sum: int | None,
    backend: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's mask and positions of trees.

    Args:
        tokens: int64 ``[rows, width]``, node 0 the root.
        numbering: of every row.
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
    mask, positions, *_ = build_tree_kernel_efficient(
        tokens[:, 0],
        numbering.parents,
        numbering.numbers,
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
    return mask, positions
