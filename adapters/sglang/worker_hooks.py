"""Hooks of a scheduler that runs HYBRID. Plain servers, and other processes, never see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from hybridspec.adapters.sglang import min_p, request_report
from hybridspec.adapters.sglang.worker import HybridWorker


def drop_old_drafts(result: None, updater: Any, weight_version: str | None = None) -> None:
    """Forget what the old weights said; every way of changing weights ends here."""
    if isinstance(updater.draft_worker, HybridWorker):
        updater.draft_worker.weights_changed()


def spare_the_head(
    original: Callable[..., list[Any]], updater: Any, selector: str = "all"
) -> list[Any]:
    """Update the target alone unless the draft head is named: SGLang would load a target's
    checkpoint into the head as well, and the mismatch ends the scheduler."""
    ours = isinstance(updater.draft_worker, HybridWorker)
    return original(updater, "target" if ours and selector == "all" else selector)


_COMPONENTS = "sglang.srt.managers.scheduler_components"
_HOOKS = (
    (
        "sglang.srt.speculative.eagle_utils.tree_speculative_sampling_target_only",
        min_p.verify,
        HookType.AROUND,
    ),
    (
        f"{_COMPONENTS}.output_streamer.SchedulerOutputStreamer"
        ".is_request_level_customized_info_key",
        request_report.is_whole_request,
        HookType.AROUND,
    ),
    (
        f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
        ".record_weight_version_after_update",
        drop_old_drafts,
        HookType.AFTER,
    ),
    (
        f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager._select_runners",
        spare_the_head,
        HookType.AROUND,
    ),
)


def install() -> None:
    """Register and apply them; once a process."""
    for target, hook, kind in _HOOKS:
        HookRegistry.register(target, hook, kind)
    HookRegistry.apply_hooks()
