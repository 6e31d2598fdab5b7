"""``hybridspec gpu-check``: joins the check with the models to run it on, and prints its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridspec.loadtest.gpu_check.contestants import CONTESTANTS
from hybridspec.loadtest.gpu_check.run import Plan, check, table, write
from hybridspec.loadtest.server import stop_on_sigterm


def run_check(
    *,
    model: str | None,
    head: str | None,
    gate: Path | None,
    dtype: str,
    streams: Sequence[int],
    prompts: int,
    max_tokens: int,
    extra: Sequence[str],
    servers: Sequence[str],
    out: Path,
    as_json: bool,
) -> bool:
    """Run the check, print its table and write ``out``; whether all was as it should be.

    Args:
        model: target; the embedded one with the demo's head and gate by default.
        head: its EAGLE3 head.
        gate: its gate; none by default, where a model is given.
        dtype: of the target.
        streams: concurrencies whose speed is measured.
        prompts: how many are compared with plain decoding.
        max_tokens: most tokens of an answer.
        extra: arguments for every server.
        servers: which of them; all by default. Plain decoding always takes part.
        out: JSON file to send back; logs and traces go into a folder beside it.
        as_json: print the JSON instead of the table.

    Raises:
        TargetError: the embedded target cannot be had.
        ValueError: a model without a head, or an unknown server; one line.
    """
    stop_on_sigterm()
    unknown = [name for name in servers if name not in CONTESTANTS]
    if unknown:
        raise ValueError(f"unknown server {unknown[0]!r}; choose from {', '.join(CONTESTANTS)}")
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    if model is None:
        model, head, gate = _bundled(gate)
    if head is None:
        raise ValueError("--model needs --head, an EAGLE3 head for it")
    facts = _facts()
    found = check(
        Plan(
            model=model,
            head=head,
            gate=gate,
            dtype=dtype,
            streams=tuple(streams),
            prompts=prompts,
            max_tokens=max_tokens,
            extra=tuple(extra),
            out=out.with_suffix(""),
            on_gpu=bool(facts["gpus"]),
            servers=tuple(
                name for name in CONTESTANTS if not servers or name in ("plain", *servers)
            ),
        ),
        console.print,
    )
    settings = {
        "model": model,
        "head": head,
        "gate": str(gate) if gate is not None else None,
        "dtype": dtype,
        "prompts": prompts,
        "max_tokens": max_tokens,
        "extra": list(extra),
    }
    found = {"machine": facts, "settings": settings, **found}
    write(found, out)
    if as_json:
        print(json.dumps(found))
        return bool(found["ok"])
    shown = Table("server", "text against plain", "waits a step")
    for count in streams:
        shown.add_column(f"tokens/s, {count} streams", justify="right")
    for row in table(found, streams):
        shown.add_row(*row)
    console.print(shown)
    if not facts["gpus"]:
        console.print("a rehearsal on a CPU: nothing here was run on a GPU")
    console.print(f"{'all as it should be' if found['ok'] else 'NOT as it should be'}; {out}")
    return bool(found["ok"])


def _bundled(gate: Path | None) -> tuple[str, str | None, Path | None]:
    from hybridspec.demo.lineup import Assets
    from hybridspec.demo.target import ensure_target

    assets = Assets.bundled(ensure_target(), gate=gate)
    return str(assets.target), str(assets.head) if assets.head else None, assets.gate


def _facts() -> dict[str, Any]:
    import torch

    from hybridspec.demo.report import machine

    gpus: list[str] = []
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {**machine(), "gpus": gpus, "torch": torch.__version__, "cuda": torch.version.cuda}
