"""Sampled verification and the probability filters it needs.

A sampled request must end up with tokens distributed exactly as the target alone would give. With
deterministic drafts ("target only", as in SGLang's tree sampling) that needs no draft
probabilities: among the children of the current node, tried in order, child ``i`` is taken when a
uniform coin falls into its share of the target's distribution; if it falls into no child's share,
the next token is drawn from the target's distribution with those shares removed.
The filters follow SGLang's PyTorch sampler, so that speculation does not change what top-k and
top-p mean. The module knows nothing of requests, temperatures or grammars.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MASK32 = np.uint64(0xFFFFFFFF)


# Nearly always enough tokens to hold a top-p mass; sorting the whole vocabulary costs 10x more.
_TOP_P_TRY = 512


def top_k_filter(probs: Tensor, top_ks: Tensor) -> Tensor:
    """Keep each row's ``top_ks`` largest probabilities, the rest becomes zero.

    The result is *not* renormalised: SGLang's PyTorch sampler applies top-p to the unnormalised
    remainder, and speculation must mean the same. The verification below normalises.

    Args:
        probs: float ``[rows, vocab]``.
        top_ks: int ``[rows]``; a value of ``vocab`` or more keeps all.
    """
    if not len(top_ks):
        return probs
    width = min(int(top_ks.max()), probs.shape[-1])
    values, index = probs.topk(width, dim=-1)
    drop = torch.arange(width) >= top_ks.view(-1, 1)
    return torch.zeros_like(probs).scatter_(-1, index, values.masked_fill_(drop, 0.0))


def top_p_filter(probs: Tensor, top_ps: Tensor) -> Tensor:
    """Keep each row's most likely tokens until their sum exceeds ``top_ps``, not renormalised.

    Args:
        probs: float ``[rows, vocab]``.
        top_ps: float ``[rows]``. The most likely token is always kept.
    """
    if not len(top_ps):
        return probs
    limit = top_ps.view(-1, 1)
    values, index = probs.topk(min(_TOP_P_TRY, probs.shape[-1]), dim=-1)
    if bool((values.sum(dim=-1, keepdim=True) <= limit).any()):
        values, index = probs.sort(dim=-1, descending=True)
    drop = values.cumsum(dim=-1) - values > limit
    drop[:, 0] = False
    return torch.zeros_like(probs).scatter_(-1, index, values.masked_fill_(drop, 0.0))


def sample_rows(weights: Tensor, coins: Tensor) -> Tensor:
    """Draw one index a row by inverting the cumulative sum.

    Args:
        weights: float ``[rows, vocab]``, non-negative, each row with a positive sum.
        coins: float ``[rows]`` in [0, 1).

    Returns:
        int64 ``[rows]``; never an index of weight zero.
    """
    total = weights.to(torch.float64).cumsum(dim=-1)
    # The largest cumulative value strictly below the total, so that rounding cannot overshoot.
    point = torch.minimum(
        coins.to(torch.float64) * total[:, -1],
        torch.nextafter(total[:, -1], torch.zeros_like(total[:, -1])),
    )
    return torch.searchsorted(total, point[:, None], right=True).squeeze(1)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Verify every draft tree by sampling from the target's distribution (first three mutated).

    Shapes: as :func:`.verify.verify_tree_greedy_cpu`; ``uniform_samples`` float ``[bs, n]``, the
    coin spent at a node; ``uniform_samples_for_final_sampling`` float ``[bs]``; ``target_probs``
    float ``[bs, n, vocab]``, each row with a positive sum (need not be one). ``draft_probs`` and
    ``deterministic`` are accepted for the sake of the signature and unused. Thresholds below 1
    accept more than the target would (SGLang's ``--speculative-accept-threshold-*``): a child is
    also taken if its probability reaches ``threshold_single`` or the coin falls below its
    cumulative share divided by ``threshold_acc``.
    """
    tokens, index = candidates.numpy(), retrive_index.numpy()
    child, sibling = retrive_next_token.numpy(), retrive_next_sibling.numpy()
    coins, out = uniform_samples.numpy(), predicts.numpy()
    path, lengths = accept_index.numpy(), accept_token_num.numpy()
    rejected: list[list[int]] = []
    nodes: list[int] = []
    for row in range(len(path)):
        node, length, share, missed = 0, 0, 0.0, list[int]()
        mass = float(target_probs[row, 0].sum())
        path[row, 0] = index[row, 0]
        option = int(child[row, 0]) if path.shape[1] > 1 else -1
        while option >= 0:
            token = int(tokens[row, option])
            single = 0.0 if token in missed else float(target_probs[row, node, token]) / mass
            share += single
            if coins[row, node] < share / threshold_acc or single >= threshold_single:
                out[index[row, node]] = token
                node, length, share, missed = option, length + 1, 0.0, []
                path[row, length] = index[row, node]
                mass = float(target_probs[row, node].sum())
                option = int(child[row, node]) if length + 1 < path.shape[1] else -1
            else:
                missed.append(token)
                option = int(sibling[row, option])
        lengths[row] = length
        nodes.append(node)
        rejected.append(missed)
    _draw_bonus(out, index, nodes, rejected, target_probs, uniform_samples_for_final_sampling)


def _draw_bonus(
    out: np.ndarray,
    index: np.ndarray,
    nodes: list[int],
    rejected: list[list[int]],
    target_probs: Tensor,
    coins: Tensor,
) -> None:
    rows = np.arange(len(nodes))
    if not len(rows):
        return
    weights = target_probs[torch.from_numpy(rows), torch.tensor(nodes)]
    for row, missed in enumerate(rejected):
        if missed:
            kept = weights[row].clone()
            weights[row, missed] = 0.0
            if not bool(weights[row].sum() > 0):
                # Rounding only: the rejected children held all the mass, so one of them it is.
                weights[row] = kept
    out[index[rows, nodes]] = sample_rows(weights, coins).numpy()


def murmur_hash32_cpu(seed: Tensor, positions: Tensor, col_indices: Tensor) -> Tensor:
    """MurmurHash3 (x86, 32 bit) of ``(seed, position, column)``, for seeded sampling.

    The hash is Austin Appleby's public-domain MurmurHash3 over four 32-bit blocks: the seed's low
    and high half, the position and the column, with starting value 0.

    Args:
        seed: uint64 or int64 ``[rows]``.
        positions: integer ``[rows]``, taken modulo 2**32.
        col_indices: integer ``[columns]``, taken modulo 2**32.

    Returns:
        uint32 ``[rows, columns]``.
    """
    seeds = seed.numpy().astype(np.uint64)[:, None]
    hashed = np.zeros((len(seeds), 1), dtype=np.uint64)
    place = positions.numpy().astype(np.uint64)[:, None] & _MASK32
    column = col_indices.numpy().astype(np.uint64)[None, :] & _MASK32
    for block in (seeds & _MASK32, seeds >> np.uint64(32), place, column):
        hashed = _mix(hashed, block)
    hashed = hashed ^ np.uint64(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = ((hashed ^ (hashed >> np.uint64(shift))) * np.uint64(factor)) & _MASK32
    hashed ^= hashed >> np.uint64(16)
    return torch.from_numpy(hashed.astype(np.uint32))


def _rotate(value: np.ndarray, bits: int) -> np.ndarray:
    return ((value << np.uint64(bits)) | (value >> np.uint64(32 - bits))) & _MASK32


def _mix(hashed: np.ndarray, block: np.ndarray) -> np.ndarray:
    block = _rotate((block * np.uint64(0xCC9E2D51)) & _MASK32, 15)
    block = (block * np.uint64(0x1B873593)) & _MASK32
    return (_rotate(hashed ^ block, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & _MASK32
