"""Bookkeeping of KV-cache slots: the small copies around every speculative step.

Each function fills tensors that SGLang allocated, on the CPU, in place, with no loop over tokens.
NumPy views are used because these arrays are tiny and a NumPy call costs a fraction of a Torch one.
The module knows nothing of attention, trees or requests: only slot tables and offsets.
Names and argument order are those SGLang's CPU path imports from ``sgl_kernel``.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def _ragged(lens: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row number and offset within the row of every element of a ragged batch, both ``[sum]``."""
    rows = np.repeat(np.arange(len(lens)), lens)
    starts = np.cumsum(lens) - lens
    return rows, np.arange(len(rows)) - starts[rows]


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write ``out_cache_loc`` into ``req_to_token[row, start:end]`` of every request, in order.

    Shapes: ``req_pool_indices``, ``start_offset``, ``end_offset`` int ``[bs]``; ``req_to_token``
    int32 ``[pool, pool_len]`` (mutated); ``out_cache_loc`` int ``[sum(end - start)]``.
    """
    start = start_offset.numpy()
    rows, offset = _ragged(end_offset.numpy().astype(np.int64) - start)
    req_to_token.numpy()[req_pool_indices.numpy()[rows], start[rows] + offset] = (
        out_cache_loc.numpy()[: len(rows)]
    )


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Pack ``req_to_token[row, start:end]`` of every request into ``out_cache_loc`` (mutated).

    The reverse of :func:`assign_req_to_token_pool_cpu`; entries past the packed ones stay as
    they are.
    """
    start = start_offset.numpy()
    rows, offset = _ragged(end_offset.numpy().astype(np.int64) - start)
    out_cache_loc.numpy()[: len(rows)] = req_to_token.numpy()[
        req_pool_indices.numpy()[rows], start[rows] + offset
    ]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Copy the ``topk * num_steps`` slots after each request's prefix into ``out_cache_loc``.

    Shapes: ``out_cache_loc`` int64 ``[bs * topk * num_steps]`` (mutated), request-major.
    """
    width = topk * num_steps
    columns = seq_lens.numpy()[:, None] + np.arange(width)
    out_cache_loc.numpy().reshape(-1, width)[: len(columns)] = req_to_token.numpy()[
        req_pool_indices.numpy()[:, None], columns
    ]


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Write each request's last accepted token into ``bonus_tokens`` ``[bs]`` (mutated).

    ``accept_tokens`` is flat with ``accept_stride`` entries a request; ``accept_lens`` ``[bs]``
    counts the bonus token too.
    """
    lens = accept_lens.numpy().astype(np.int64)
    index = np.arange(len(lens)) * accept_stride + lens - 1
    bonus_tokens.numpy()[: len(lens)] = accept_tokens.numpy().reshape(-1)[index]


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Pack ``out_cache_loc[accept_index]`` of the accepted nodes (-1 marks none) to the front.

    ``accept_out_cache_loc`` int64 (mutated) keeps its values past the packed ones.
    """
    index = accept_index.numpy().reshape(-1)
    index = index[index > -1]
    accept_out_cache_loc.numpy()[: len(index)] = out_cache_loc.numpy()[index]


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Slot table with one row for each (request, draft branch), int32 ``[bs * topk, pool_len]``.

    Branch ``k`` sees the request's prefix, then its own ``num_steps`` draft slots, which start
    ``k * num_steps`` after the prefix. Columns past those are unspecified (here: zero).
    """
    table = req_to_token.numpy()
    bs = len(seq_lens)
    out = np.zeros((bs, topk, pool_len), dtype=table.dtype)
    branch = (np.arange(topk) * num_steps)[:, None] + np.arange(num_steps)
    for row, (request, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        out[row, :, :length] = table[request, :length]
        end = min(length + num_steps, pool_len)
        columns = np.minimum(length + branch, table.shape[1] - 1)
        out[row, :, length:end] = table[request, columns][:, : end - length]
    return torch.from_numpy(out.reshape(bs * topk, pool_len))


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's tokens one to the left and put its new token at the end (mutates ids).

    ``topk_index`` ``[bs]`` holds the new tokens. With ``select_index`` ``[bs]`` the new token goes
    to that flat position instead of the request's last one.
    """
    ids = input_ids.numpy()
    lens = extend_seq_lens.numpy().astype(np.int64)
    starts = extend_start_loc.numpy().astype(np.int64)
    rows, offset = _ragged(np.maximum(lens - 1, 0))
    target = starts[rows] + offset
    ids[target] = ids[target + 1]
    where = starts + lens - 1 if select_index is None else select_index.numpy()
    live = lens > 0
    ids[where[live]] = topk_index.numpy().reshape(-1)[: len(lens)][live]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy KV rows ``src_loc`` to ``tgt_loc`` in every layer's buffer; overlap is safe.

    ``data_ptrs`` uint64 ``[buffers]`` are addresses of K and V buffers, ``strides`` int64
    ``[buffers]`` their row sizes in bytes, ``tgt_loc``/``src_loc`` int ``[n]`` row numbers. The
    buffers are not tensors here, so rows must lie inside them: the caller's pool guarantees it.
    """
    target, source = tgt_loc.numpy(), src_loc.numpy()
    moved = target != source
    target, source = target[moved], source[moved]
    if not len(target):
        return
    rows = int(max(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        view = np.frombuffer(raw, dtype=np.uint8).reshape(rows, stride)
        view[target] = view[source]
