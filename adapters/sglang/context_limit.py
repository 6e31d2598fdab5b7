"""Room at the end of the context for widths that change from step to step.

SGLang 0.5.23 reserves KV slots for two steps of the widest draft, but its table of slots has only
room for one beyond the context limit: with more than a handful of draft tokens a request near the
limit writes past the end of its row. It also refuses prompts that leave less than one draft, which
plain decoding serves; HYBRID's drafts end where the request must.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.mem_cache.allocation_sizing import get_alloc_page_size, get_alloc_reserve_per_decode
from sglang.srt.runtime_context import get_spec

from hybridspec.adapters.sglang import config


def slots_beyond(original: Callable[[], int]) -> int:
    """AROUND hook on ``allocation_sizing.get_req_to_token_extra_context_len``."""
    if not _ours():
        return original()
    return max(original(), int(get_alloc_reserve_per_decode()) + int(get_alloc_page_size()))


def reserved_tokens(original: Callable[[], int]) -> int:
    """AROUND hook on ``managers.utils.compute_num_reserved_tokens``."""
    return 0 if _ours() else original()


def _ours() -> bool:
    return config.is_hybrid(get_spec().speculative_algorithm)
