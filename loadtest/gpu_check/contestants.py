"""Which servers the check compares, and their arguments. Starts nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridspec.loadtest.algorithms import HYBRID, NGRAM, eagle3

_STEPS = 3
"""EAGLE3's draft steps: those of a HYBRID server that is given none."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One server.

    Attributes:
        args: its own arguments of ``sglang.launch_server``.
        head: whether it loads the EAGLE3 head.
        gate: whether it loads the gate, if one is given.
        settings: what its ``--hybrid-config`` holds.
        needs_gpu: whether it says nothing on a CPU.
    """

    args: tuple[str, ...]
    head: bool = False
    gate: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    needs_gpu: bool = False

    @property
    def ours(self) -> bool:
        return self.args == HYBRID


CONTESTANTS: dict[str, Contestant] = {
    "plain": Contestant(()),
    "ngram": Contestant(NGRAM),
    "eagle3": Contestant(eagle3(_STEPS), head=True),
    "hybrid": Contestant(HYBRID, head=True, gate=True),
    "hybrid, overlap off": Contestant(HYBRID, True, True, (("overlap", "never"),), needs_gpu=True),
    "hybrid, overlap on": Contestant(HYBRID, True, True, (("overlap", "always"),)),
    "hybrid, gate on cpu": Contestant(HYBRID, True, True, (("gate_device", "cpu"),), True),
    "hybrid, gate on cuda": Contestant(HYBRID, True, True, (("gate_device", "cuda"),), True),
}


def server_args(
    contestant: Contestant,
    *,
    model: str,
    head: str,
    gate: Path | None,
    dtype: str,
    folder: Path,
    extra: Sequence[str],
) -> list[str]:
    """Arguments of ``sglang.launch_server``, without host and port.

    Args:
        contestant: which one.
        model: folder or hub id of the target.
        head: of the EAGLE3 head.
        gate: folder of the gate, if there is one.
        dtype: of the target.
        folder: where a ``--hybrid-config`` file may be written.
        extra: the user's own arguments, for every server.
    """
    args = ["--model-path", model, "--dtype", dtype, "--enable-metrics", *contestant.args]
    if contestant.head:
        args += ["--speculative-draft-model-path", head]
    if contestant.gate and gate is not None:
        args += ["--hybrid-gate", str(gate)]
    if contestant.settings:
        settings = dict(contestant.settings)
        file = folder / ("-".join((*settings, *settings.values())) + ".json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
        args += ["--hybrid-config", str(file)]
    return [*args, *extra]
