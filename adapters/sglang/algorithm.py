"""The ``HYBRID`` algorithm as SGLang's scheduler sees it.

It answers like EAGLE3 wherever SGLang asks what kind of algorithm runs (draft KV pool, auxiliary
hidden states, shared embedding), and re-states what SGLang resolves for EAGLE3 by name.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from hybridspec.adapters.sglang import config, cpu, step_profile, validate

MAX_RUNNING_REQUESTS = 48
"""SGLang's own default for EAGLE3 (``arg_groups/speculative_hook.py``, 0.5.23)."""


class HybridAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """Duck-types ``SpeculativeAlgorithm.EAGLE3`` and adds the widest verify width."""

    create_future_map = SpeculativeAlgorithm.create_future_map
    need_topk = SpeculativeAlgorithm.need_topk
    carries_draft_hidden_states = SpeculativeAlgorithm.carries_draft_hidden_states
    get_platform_worker_cls = SpeculativeAlgorithm.get_platform_worker_cls

    def is_eagle(self) -> bool:
        return True

    def is_eagle3(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def handle_server_args(self, server_args: Any) -> None:
        """Resolve what SGLang resolves for EAGLE3; attribute writes become resolutions."""
        validate.server_args(server_args)
        steps = server_args.speculative_num_steps or validate.DEFAULT_STEPS
        server_args.speculative_num_steps = steps
        server_args.speculative_eagle_topk = 1
        server_args.speculative_num_draft_tokens = steps + 1
        server_args.enable_mixed_chunk = False
        settings = config.current()
        # A CPU has nothing to overlap with; there it is for testing what happens on a GPU.
        if settings.overlap == "never" or (settings.overlap == "auto" and cpu.needed()):
            server_args.disable_overlap_schedule = True
        if cpu.needed():
            _without_graphs(server_args)
        if server_args.max_running_requests is None:
            server_args.max_running_requests = MAX_RUNNING_REQUESTS
        if cpu.needed() and settings.profile is None:
            step_profile.schedule(server_args, settings.widths, settings.profile_s)

    def resolve_max_speculative_num_draft_tokens(self, server_args: Any) -> int:
        """The widest verify width; SGLang sizes KV reserves and buffers with it."""
        from sglang.srt.arg_groups.overrides import resolving_view

        view = resolving_view(server_args)
        return max(config.current().widths[-1], view.speculative_num_draft_tokens or 1)


def _without_graphs(server_args: Any) -> None:
    """A CPU's graphs are torch.compile's, which needs a compiler and knows one verify width."""
    server_args.disable_cuda_graph = True
    if server_args.cuda_graph_config is not None:
        server_args.cuda_graph_config = with_phase(
            server_args.cuda_graph_config, Phase.DECODE, backend=Backend.DISABLED
        )


def worker_class(server_args: Any) -> type:
    """Worker factory: imported late, because it pulls in SGLang's whole engine."""
    from hybridspec.adapters.sglang import worker_hooks
    from hybridspec.adapters.sglang.worker import HybridWorker

    worker_hooks.install()
    return HybridWorker
