"""``sgl_kernel.speculative``: the names that SGLang imports from here instead of the package."""

from hybridspec.adapters.sglang.cpu.module import (
    reconstruct_indices_from_tree_mask as reconstruct_indices_from_tree_mask,
)
from hybridspec.adapters.sglang.cpu.module import (
    tree_speculative_sampling_target_only as tree_speculative_sampling_target_only,
)
