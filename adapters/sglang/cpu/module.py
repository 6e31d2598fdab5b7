"""What ``import sgl_kernel`` gives where SGLang's compiled kernels cannot load.

Only the names that SGLang's CPU path asks for; :data:`OPS` are those it calls through
``torch.ops.sgl_kernel``. The compiled package's other names are absent on purpose: SGLang asks for
them on other devices only.
"""

from __future__ import annotations

from typing import Any

import torch

from hybridspec.adapters.sglang.cpu.kv_slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from hybridspec.adapters.sglang.cpu.sampling import (
    murmur_hash32_cpu,
    tree_speculative_sampling_target_only,
)
from hybridspec.adapters.sglang.cpu.tree import (
    build_tree_kernel_efficient_cpu,
    reconstruct_indices_from_tree_mask,
)
from hybridspec.adapters.sglang.cpu.verify import verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "murmur_hash32_cpu",
    "reconstruct_indices_from_tree_mask",
    "rotate_input_ids_cpu",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy_cpu",
]

# The operators live as long as this object.
_LIBRARY: Any = None


def register_ops() -> None:
    """Define the operators that SGLang calls as ``torch.ops.sgl_kernel.*``; once a process."""
    global _LIBRARY
    if _LIBRARY is not None:
        return
    library: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor cols) -> Tensor")
    library.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
    _LIBRARY = library
