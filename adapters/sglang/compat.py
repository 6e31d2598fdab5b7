"""The table of SGLang names that we rely on, and the check that they are what we think they are.

Checked when a HYBRID server starts, and by ``hybridspec doctor``. A name that moved or changed its
parameters is reported by path: an SGLang upgrade fails in one line and not inside a request.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass

TESTED_VERSIONS = ("0.5.23",)
"""SGLang releases that the test suite has passed on."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One SGLang name: where it is, and the parameters or attributes that we use of it."""

    path: str
    uses: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """One line saying what is wrong with this name in the installed SGLang, or None."""
        try:
            found = pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            return f"{self.path}: not found ({error})"
        missing = [name for name in self.uses if not _offers(found, name)]
        if missing:
            return f"{self.path}: no longer offers {', '.join(missing)}"
        return None


def _offers(found: object, name: str) -> bool:
    """Whether a class has, declares or sets ``name``, or a callable takes it."""
    if isinstance(found, type):
        if hasattr(found, name) or name in getattr(found, "__annotations__", {}):
            return True
        initialiser = getattr(vars(found).get("__init__"), "__code__", None)
        set_there = initialiser is not None and name in initialiser.co_names
        return set_there or name in inspect.signature(found).parameters
    if callable(found):
        return name in inspect.signature(found).parameters
    return hasattr(found, name)


_SRT = "sglang.srt"
_SPEC = f"{_SRT}.speculative"
_COMPONENTS = f"{_SRT}.managers.scheduler_components"

HOOKS: tuple[Hook, ...] = (
    # Extension points that SGLang documents.
    Hook(f"{_SRT}.plugins.hook_registry.HookRegistry", ("register",)),
    Hook(f"{_SRT}.plugins.hook_registry.HookType", ("AFTER", "AROUND")),
    Hook(f"{_SPEC}.spec_info.SpeculativeAlgorithm.register", ("supports_overlap", "spec_class")),
    Hook(
        f"{_SPEC}.spec_registry.CustomSpecAlgo",
        ("handle_server_args", "resolve_max_speculative_num_draft_tokens", "create_worker"),
    ),
    Hook(f"{_SRT}.server_args.ServerArgs.add_cli_args", ("parser",)),
    Hook(f"{_SRT}.server_args.ServerArgs.from_cli_args", ("args",)),
    Hook(f"{_SRT}.entrypoints.warmup.warmup", ("name",)),
    Hook(f"{_SRT}.managers.io_struct.GenerateReqInput", ("input_ids", "rid", "sampling_params")),
    Hook(
        f"{_SRT}.managers.tokenizer_manager.TokenizerManager",
        ("generate_request", "abort_request"),
    ),
    Hook(
        f"{_SRT}.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        ("obj", "input_ids"),
    ),
    Hook(f"{_SRT}.managers.utils.compute_num_reserved_tokens"),
    Hook(f"{_SRT}.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"),
    Hook(f"{_SRT}.mem_cache.allocation_sizing.get_alloc_reserve_per_decode"),
    Hook(f"{_SRT}.mem_cache.allocation_sizing.get_alloc_page_size"),
    Hook(f"{_SRT}.runtime_context.get_spec"),
    # What the scheduler asks of an algorithm; the enum's own functions are borrowed.
    Hook(
        f"{_SPEC}.spec_info.SpeculativeAlgorithm",
        ("create_future_map", "need_topk", "carries_draft_hidden_states", "EAGLE3"),
    ),
    # The worker that ours extends, and the pieces of a step that it overrides or calls.
    Hook(
        f"{_SPEC}.eagle_worker_v2.EAGLEWorkerV2",
        (
            *("forward_batch_generation", "on_verify_complete_cpu", "clear_cache_pool"),
            *("_stub_skipped_draft_extend", "_override_worker_state", "init_cuda_graphs"),
            "topk",
        ),
    ),
    Hook(
        f"{_SPEC}.eagle_worker_v2.EagleDraftWorker",
        (
            *("draft", "_draft_extend_for_decode", "_draft_extend_for_prefill"),
            *("init_attention_backend", "_capture_cuda_graphs", "parallel_layout"),
        ),
    ),
    Hook(
        f"{_SPEC}.adaptive_runtime_state.SpecRuntimeState",
        (
            *("target_attn_backend", "target_graph_runner", "draft_extend_attn_backend"),
            "cuda_graph_runner_for_draft_extend",
        ),
    ),
    Hook(
        f"{_SRT}.model_executor.runner.DecodeCudaGraphRunner",
        ("attn_backend", "speculative_num_steps", "speculative_num_draft_tokens"),
    ),
    Hook(
        f"{_SRT}.model_executor.model_runner.ModelRunner",
        ("_get_attention_backend", "init_new_workspace"),
    ),
    Hook(f"{_SRT}.model_executor.cuda_graph_config.check_cuda_graph_backend", ("phase", "backend")),
    Hook(f"{_SRT}.utils.common.get_available_gpu_memory", ("device", "gpu_id")),
    Hook(f"{_SRT}.runtime_context.get_exec"),
    Hook(f"{_SRT}.runtime_context.get_schedule"),
    Hook(f"{_SRT}.model_executor.forward_batch_info.ForwardMode", ("EXTEND",)),
    Hook(
        f"{_SRT}.managers.schedule_batch.ScheduleBatch",
        (
            *("forward_mode", "input_ids", "out_cache_loc", "prefix_lens", "extend_lens"),
            *("extend_num_tokens", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices"),
            "req_to_token_pool",
            *("extend_logprob_start_lens", "extend_input_logprob_token_ids"),
            *("chunked_req_next_prompt_token", "spec_info", "reqs"),
        ),
    ),
    Hook(
        f"{_SRT}.managers.utils.GenerationBatchResult",
        (
            *("logits_output", "next_token_ids", "accept_lens", "accept_index"),
            *("next_draft_input", "speculative_num_draft_tokens", "can_run_cuda_graph"),
        ),
    ),
    Hook(f"{_SRT}.distributed.parallel_state.get_tp_group"),
    Hook(
        f"{_SPEC}.eagle_info.EagleVerifyInput",
        (
            *("draft_token", "custom_mask", "positions", "retrieve_index", "draft_token_num"),
            *("retrieve_next_token", "retrieve_next_sibling", "spec_steps", "topk"),
        ),
    ),
    Hook(
        f"{_SPEC}.eagle_info.EagleDraftInput",
        ("bonus_tokens", "topk_index", "filter_batch", "merge_batch"),
    ),
    Hook(f"{_SPEC}.base_spec_worker.BaseSpecWorker", ("note_request_finished",)),
    # Trees of two branches.
    Hook(
        f"{_SPEC}.eagle_worker_v2.EAGLEWorkerV2.alloc_memory_pool",
        ("token_to_kv_pool_allocator",),
    ),
    Hook(
        f"{_SPEC}.eagle_worker_common._finalize_accept_tree_path",
        (
            *("batch", "accept_index", "accept_lens", "predict", "logits_output", "bs"),
            *("token_to_kv_pool_allocator", "num_draft_tokens"),
        ),
    ),
    Hook(f"{_SPEC}.spec_utils.draft_tp_context"),
    Hook(f"{_SPEC}.spec_utils.spec_stage_span"),
    Hook(f"{_SRT}.layers.moe.utils.speculative_moe_backend_context"),
    Hook(f"{_SRT}.layers.moe.utils.speculative_moe_a2a_backend_context"),
    Hook(
        f"{_SRT}.managers.schedule_batch.Req",
        (
            *("rid", "origin_input_ids", "output_ids", "output_ids_through_stop"),
            *("finished_reason", "cache_salt", "extra_key", "sampling_params"),
            "customized_info",
        ),
    ),
    Hook(
        f"{_SRT}.sampling.sampling_batch_info.SamplingBatchInfo",
        ("min_ps", "need_min_p_sampling"),
    ),
    Hook(f"{_SPEC}.eagle_utils.tree_speculative_sampling_target_only", ("target_probs",)),
    Hook(
        f"{_COMPONENTS}.output_streamer.SchedulerOutputStreamer"
        ".is_request_level_customized_info_key",
        ("key",),
    ),
    Hook(
        f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager",
        ("draft_worker", "record_weight_version_after_update"),
    ),
    Hook(
        f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager._select_runners",
        ("selector",),
    ),
    Hook(f"{_SRT}.sampling.sampling_params.SamplingParams", ("max_new_tokens",)),
    Hook(f"{_SRT}.model_executor.forward_batch_info.CaptureHiddenMode", ("FULL",)),
    Hook(f"{_SRT}.arg_groups.overrides.resolving_view", ("server_args",)),
    Hook(f"{_SRT}.runtime_context.get_parallel"),
    Hook(f"{_SRT}.model_executor.cuda_graph_config.with_phase"),
    # The portable CPU runtime (``cpu/hooks.py``); harmless to check elsewhere too.
    Hook(f"{_SRT}.platforms", ("current_platform", "_current_platform")),
    Hook(f"{_SRT}.utils.common", ("is_cpu", "get_device")),
    Hook(f"{_SRT}.arg_groups.choices.add_attention_backend_choices"),
    Hook(f"{_SRT}.arg_groups.choices.add_draft_attention_backend_choices"),
    Hook(f"{_SRT}.arg_groups.resolution_hooks.register_resolution_hook"),
    Hook(f"{_SRT}.arg_groups.overrides.declare_resolution", ("server_args",)),
    Hook(f"{_SRT}.layers.attention.attention_registry.register_attention_backend"),
    Hook(
        f"{_SRT}.layers.attention.base_attn_backend.AttentionBackend",
        ("forward_decode", "verify_mask"),
    ),
    Hook(f"{_SRT}.layers.attention.verify_mask.VerifyMask", ("buffer", "mode", "fits", "is_read")),
    Hook(
        f"{_SPEC}.draft_utils.DraftBackendFactory",
        ("create_decode_backend", "create_draft_extend_backend"),
    ),
    Hook(f"{_SRT}.managers.overlap_utils.gather_spec_extras", ("indices", "hidden_states_buf")),
    Hook(f"{_SPEC}.eagle_utils._verify_uses_greedy", ("is_all_greedy",)),
    Hook(f"{_SRT}.distributed.parallel_state.GroupCoordinator", ("use_pynccl", "cpu_group")),
    Hook(
        f"{_SPEC}.eagle_utils",
        ("tree_speculative_sampling_target_only", "top_k_renorm_prob", "top_p_renorm_prob"),
    ),
    Hook(f"{_SPEC}.eagle_utils.build_tree_kernel_efficient", ("tree_mask_mode", "tree_mask_buf")),
    Hook(f"{_SPEC}.eagle_utils.default_tree_mask_mode"),
    Hook(
        f"{_SRT}.layers.quantization.unquant.UnquantizedLinearMethod",
        ("process_weights_after_loading", "apply"),
    ),
    Hook(f"{_SRT}.layers.logits_processor.LogitsProcessor", ("_compute_lm_head",)),
    Hook(f"{_SRT}.layers.logits_processor.should_apply_lm_head_quant_method"),
    Hook(f"{_SRT}.layers.rotary_embedding.base.RotaryEmbedding", ("forward_native",)),
    Hook(
        f"{_SRT}.model_executor.model_runner_components.weight_updater.WeightUpdater",
        (
            "update_weights_from_disk",
            "load_weights_from_distributed",
            "update_weights_from_tensor",
            "update_weights_from_ipc",
        ),
    ),
    Hook(f"{_SRT}.layers.radix_attention.RadixAttention", ("layer_id", "tp_q_head_num", "scaling")),
    Hook(f"{_SRT}.mem_cache.swa_memory_pool.SWAKVPool"),
    Hook(f"{_SRT}.runtime_context.attention_backends"),
)


def installed_version() -> str | None:
    """The installed SGLang's version, or None where SGLang is absent."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def version_problem(allow_untested: bool) -> str | None:
    """One line if the installed SGLang is missing or not a tested release, else None."""
    version = installed_version()
    tested = ", ".join(TESTED_VERSIONS)
    if version is None:
        return f"SGLang is not installed; pip install sglang=={TESTED_VERSIONS[-1]}"
    if version in TESTED_VERSIONS or allow_untested:
        return None
    return (
        f"SGLang {version} is not a tested version ({tested}); install one of them, or set "
        "allow_untested_sglang: true in --hybrid-config"
    )


def hook_problems(hooks: Iterable[Hook] = HOOKS) -> list[str]:
    """One line for every name that is missing or has changed; empty when all are as expected."""
    return [problem for hook in hooks if (problem := hook.problem()) is not None]
