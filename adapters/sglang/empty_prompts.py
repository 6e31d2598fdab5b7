"""Refuses prompts without tokens where they would end the scheduler.

SGLang 0.5.23 refuses empty token ids and empty completions, but not an empty ``text`` of
``/generate`` where the tokenizer adds no token of its own: a forward of nothing follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridspec.adapters.sglang import config, cpu


def refuse(original: Callable[..., Any], manager: Any, obj: Any, input_ids: Any) -> Any:
    """AROUND hook on ``TokenizerManager._validate_one_request``.

    Raises:
        ValueError: no tokens; SGLang answers it with status 400.
    """
    ours = config.is_hybrid(manager.server_args.speculative_algorithm) or cpu.needed()
    if ours and input_ids is not None and len(input_ids) == 0:
        raise ValueError("The prompt has no tokens.")
    return original(manager, obj, input_ids)
