"""Rotary position embedding with the angles looked up once a forward instead of in every layer.

SGLang's native code takes about 25 small operations a layer; on a CPU each costs microseconds of
dispatch, as much as the arithmetic at a few tokens. This takes six, over query and key at once. The
module knows nothing of layers or of how a model derives its angles.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the halves of every head of ``query`` and ``key`` ``[tokens, heads * dim]``.

    Args:
        query: queries.
        key: keys; where they follow the queries in one projection's output both are rotated
            together.
        cos: ``[tokens, 1, dim]``, the cosines of the angles, twice.
        sin: ``[tokens, 1, dim]``, the negated sines, then the sines.
    """
    dim = cos.shape[-1]
    width = query.shape[1]
    if _adjacent(query, key):
        both = query.as_strided(
            (query.shape[0], (width + key.shape[1]) // dim, dim), (query.stride(0), dim, 1)
        )
        out = _rotate_heads(both, cos, sin).flatten(1)
        return out[:, :width], out[:, width:]
    rotated_query = _rotate_heads(query.view(len(query), width // dim, dim), cos, sin)
    rotated_key = _rotate_heads(key.view(len(key), key.shape[1] // dim, dim), cos, sin)
    return rotated_query.flatten(1), rotated_key.flatten(1)


def _adjacent(query: Tensor, key: Tensor) -> bool:
    return (
        query.stride() == key.stride()
        and query.data_ptr() + query.shape[1] * query.element_size() == key.data_ptr()
        and query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    )


def _rotate_heads(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (heads * cos).addcmul_(heads.roll(heads.shape[-1] // 2, -1), sin)


class Angles:
    """Cosines and sines of the latest forward's positions."""

    def __init__(self) -> None:
        # forward, table, positions, their version, dtype and the angles. The objects themselves
        # are kept, not their ids: an id can be used again.
        self._known: tuple[object, Tensor, Tensor, int, torch.dtype, tuple[Tensor, Tensor]] | None
        self._known = None

    def get(
        self, forward: object, table: Tensor, positions: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Angles of ``positions``, looked up again only if something changed.

        Args:
            forward: an object that is another one in every forward, or None if there is none. It
                covers positions that are rewritten between forwards without PyTorch's knowledge.
            table: ``[positions, dim]``, cosines then sines of half the dimensions.
            positions: int64 ``[tokens]``; changes in place through PyTorch are noticed.
            dtype: of the result.

        Returns:
            ``(cos, sin)`` as :func:`rotate` takes them.
        """
        known = self._known
        if (
            known is not None
            and known[0] is forward
            and known[1] is table
            and known[2] is positions
            and known[3] == positions._version
            and known[4] is dtype
        ):
            return known[5]
        cos, sin = table.index_select(0, positions).to(dtype).chunk(2, dim=-1)
        angles = (
            torch.cat((cos, cos), dim=-1).unsqueeze(1),
            torch.cat((-sin, sin), dim=-1).unsqueeze(1),
        )
        # Inference tensors do not count their changes.
        if forward is None or positions.is_inference():
            self._known = None
        else:
            self._known = (forward, table, positions, positions._version, dtype, angles)
        return angles
