"""HYBRID's command-line flags, added to ``sglang serve`` through hooks on ``ServerArgs``.

Errors in the flags end the process here, before SGLang resolves anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from hybridspec.adapters.sglang import config, validate


def add_cli_args(result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER hook on ``ServerArgs.add_cli_args``: our group in ``--help``."""
    group = parser.add_argument_group("hybridspec", "Flags of --speculative-algorithm HYBRID.")
    group.add_argument(
        "--hybrid-gate",
        type=str,
        default=None,
        metavar="DIR",
        help="Folder of the gate (gate.onnx and gate.json). Without one, HYBRID decides by "
        "measured acceptance.",
    )
    group.add_argument(
        "--hybrid-gate-device",
        type=str,
        default=None,
        metavar=f"{{{','.join(config.GATE_DEVICES)}}}",
        help="Where the gate runs. auto (default): CPU or GPU, whichever is measured to be faster "
        "at start.",
    )
    group.add_argument(
        "--hybrid-policy",
        type=str,
        default=None,
        metavar=f"{{{','.join(config.POLICIES)}}}",
        help="How drafts are chosen. goodput (default): most expected tokens per second; "
        "threshold: cache draft if its predicted accepted length exceeds tau, else EAGLE3; "
        "score: by the suffix tree's own score; cache, model, none: one source only.",
    )
    group.add_argument(
        "--hybrid-trace-dir",
        type=str,
        default=None,
        metavar="DIR",
        help="Record served requests into this folder, to train gates from. The files hold the "
        "token ids of prompts and answers.",
    )
    group.add_argument(
        "--hybrid-config",
        type=str,
        default=None,
        metavar="FILE",
        help="YAML or JSON file with HYBRID's other settings; unknown keys are refused.",
    )


def from_cli_args(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND hook on ``ServerArgs.from_cli_args``: read our flags, publish them for children.

    The namespace is the last positional argument whether or not the class comes first.

    Raises:
        SystemExit: one line on stderr, for flags that HYBRID cannot start with.
    """
    namespace = kwargs.get("args", args[-1] if args else None)
    if isinstance(namespace, argparse.Namespace):
        _publish(namespace)
    return original(*args, **kwargs)


def _publish(namespace: argparse.Namespace) -> None:
    names = ("gate", "gate_device", "policy", "trace_dir")
    flags = {name: getattr(namespace, f"hybrid_{name}", None) for name in names}
    file = getattr(namespace, "hybrid_config", None)
    given = any([*flags.values(), file])
    algorithm = getattr(namespace, "speculative_algorithm", None)
    if not config.is_hybrid(algorithm):
        if given:
            raise SystemExit(
                "hybridspec: --hybrid-* flags need --speculative-algorithm HYBRID "
                f"(got {algorithm or 'none'}); add it or drop the flags"
            )
        return
    try:
        settings = config.from_flags(flags, file)
        if given:
            config.publish(settings)
    except config.ConfigError as error:
        raise SystemExit(f"hybridspec: {error}") from None
    # SGLang reads the head's configuration, and changes flags that it gates by name, before it asks
    # a plugin to check anything.
    validate.given(settings, namespace)
