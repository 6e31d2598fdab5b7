"""Where the portable CPU runtime meets SGLang: device, attention backend, sampled verification.

SGLang's registries and its HookRegistry are used wherever they reach. Three things they do not
reach are set directly, each said at its place. No kernel lives here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

NAME = "portable"

_FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
_EAGLE = "sglang.srt.speculative.eagle_utils"
_GATHER = "sglang.srt.managers.overlap_utils.gather_spec_extras"
_GROUP = "sglang.srt.distributed.parallel_state.GroupCoordinator"


def use_cpu_engine() -> None:
    """Make SGLang see a CPU machine, here and in the processes started from here.

    SGLang reads the variable once a process and keeps the answer; in the main process it may have
    asked before the plugin ran, so the kept answers are dropped.
    """
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    from sglang.srt import platforms
    from sglang.srt.utils import common

    common.is_cpu.cache_clear()
    common.get_device.cache_clear()
    stale = platforms._current_platform
    if stale is None or stale.device_name == "cpu":
        return
    platforms._current_platform = None
    fresh = platforms.current_platform
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and vars(module).get("current_platform") is stale:
            module.current_platform = fresh  # type: ignore[attr-defined]


def register_backend() -> None:
    """Register the attention backend, its names on the command line and for draft models."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    if NAME not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([NAME])
    if NAME not in choices.DRAFT_ATTENTION_BACKEND_CHOICES:
        choices.add_draft_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_create_backend)
    register_resolution_hook("handle_cpu_backends")(_default_backend)
    HookRegistry.register(f"{_FACTORY}.create_decode_backend", _draft_decode, HookType.AROUND)
    HookRegistry.register(f"{_FACTORY}.create_draft_extend_backend", _draft_extend, HookType.AROUND)


def _create_backend(runner: Any) -> Any:
    from hybridspec.adapters.sglang.cpu.backend import PortableAttnBackend

    return PortableAttnBackend(runner)


def _default_backend(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Choose the backend on a CPU unless the user named one, and let an idle server sleep.

    An idle scheduler polls without pause (seen: 80% of a core); where the model runs on the same
    cores that costs whoever else uses the machine.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    view = resolving_view(server_args)
    if view.device == "cpu":
        declare_resolution(server_args, "hybridspec", sleep_on_idle=True)
        if view.attention_backend is None:
            declare_resolution(server_args, "hybridspec", attention_backend=NAME)
    previous(server_args)


def _configured(factory: Any, phase: int) -> str:
    from sglang.srt.runtime_context import attention_backends

    return str(factory.draft_attn_backend or attention_backends()[phase])


def _draft_decode(original: Callable[[Any], Any], factory: Any) -> Any:
    if factory.speculative_num_steps <= 1 or _configured(factory, 1) != NAME:
        return original(factory)
    from hybridspec.adapters.sglang.cpu.backend import PortableMultiStepDraftBackend

    backend = PortableMultiStepDraftBackend(
        factory.draft_model_runner, factory.topk, factory.speculative_num_steps
    )
    for each in (backend, *backend.attn_backends):
        _stamp(each)
    return backend


def _draft_extend(original: Callable[[Any], Any], factory: Any) -> Any:
    if _configured(factory, 0) != NAME:
        return original(factory)
    backend = _create_backend(factory.draft_model_runner)
    _stamp(backend)
    return backend


def _stamp(backend: Any) -> None:
    backend.prefill_attention_backend_str = NAME
    backend.decode_attention_backend_str = NAME


def register_sampled_verification() -> None:
    """Let speculative verification sample where a request samples.

    SGLang commits the argmax for every request on a CPU, because it has no sampling kernels there:
    a request with a temperature would silently be greedy. Names that are None cannot go through
    HookRegistry (it would replace every None it finds), so they are set directly.
    """
    from sglang.srt.speculative import eagle_utils

    from hybridspec.adapters.sglang.cpu import sampling

    HookRegistry.register(f"{_EAGLE}._verify_uses_greedy", _greedy_if_all_are, HookType.REPLACE)
    for name, kernel in (
        ("tree_speculative_sampling_target_only", sampling.tree_speculative_sampling_target_only),
        ("top_k_renorm_prob", sampling.top_k_filter),
        ("top_p_renorm_prob", sampling.top_p_filter),
    ):
        if getattr(eagle_utils, name) is None:
            setattr(eagle_utils, name, kernel)


def _greedy_if_all_are(*, is_all_greedy: bool, **_: Any) -> bool:
    return is_all_greedy


def register_relay() -> None:
    """Let overlap scheduling relay a step's results: SGLang gathers them with a Triton kernel."""
    HookRegistry.register(_GATHER, _gather, HookType.REPLACE)


def _gather(indices: Any, *buffers: Any) -> tuple[Any, ...]:
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)


def register_groups() -> None:
    """Keep tensor-parallel ranks on a CPU from asking for NCCL, which SGLang does wherever torch is
    a CUDA build."""
    HookRegistry.register(f"{_GROUP}.__init__", _without_nccl, HookType.AROUND)


def _without_nccl(original: Callable[..., None], group: Any, *args: Any, **kwargs: Any) -> None:
    original(group, *args, **{**kwargs, "use_pynccl": False})
