"""Entry point of the SGLang plugin (group ``sglang.srt.plugins``), run in every SGLang process.

SGLang only logs a plugin that raises and then fails on an unknown algorithm name. So where the user
asked for HYBRID and it cannot be registered, the process ends here with one line; where the user
did not, SGLang goes on without us.
"""

from __future__ import annotations

import sys

_MANAGERS = "sglang.srt.managers"


def register() -> None:
    """Install the portable CPU runtime where needed, HYBRID's flags and the algorithm itself.

    Raises:
        SystemExit: HYBRID was asked for on the command line and cannot be registered.
    """
    try:
        _register()
    except Exception as error:
        if not _asked_for():
            raise  # SGLang logs it; plain serving is not ours to stop.
        from hybridspec.adapters.sglang import compat

        reason = compat.version_problem(allow_untested=False)
        raise SystemExit(
            f"hybridspec: HYBRID cannot register with this SGLang ({type(error).__name__}: {error})"
            + (f"; {reason}" if reason else "")
        ) from None


def _register() -> None:
    from hybridspec.adapters.sglang import cpu

    # First: the device must be settled before SGLang's modules ask for it at import.
    if cpu.needed():
        cpu.install()

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from hybridspec.adapters.sglang import algorithm, config, context_limit, empty_prompts, flags

    record = "sglang.srt.server_args.ServerArgs"
    HookRegistry.register(f"{record}.add_cli_args", flags.add_cli_args, HookType.AFTER)
    HookRegistry.register(f"{record}.from_cli_args", flags.from_cli_args, HookType.AROUND)
    for target, hook in (
        (
            f"{_MANAGERS}.tokenizer_manager.TokenizerManager._validate_one_request",
            empty_prompts.refuse,
        ),
        (f"{_MANAGERS}.utils.compute_num_reserved_tokens", context_limit.reserved_tokens),
        (
            "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
            context_limit.slots_beyond,
        ),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
    SpeculativeAlgorithm.register(
        config.NAME, supports_overlap=True, spec_class=algorithm.HybridAlgorithm
    )(algorithm.worker_class)


def _asked_for() -> bool:
    return "HYBRID" in (argument.rpartition("=")[2].upper() for argument in sys.argv)
