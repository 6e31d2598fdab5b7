"""The six algorithms of the demo and the server arguments that each of them needs.

Device flags are left to SGLang and the plugin: the same arguments serve on a CPU and on a GPU. This
module starts nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hybridspec.loadtest.algorithms import HYBRID, NGRAM, eagle3

HERE = Path(__file__).resolve().parent

# EAGLE3's best chain of one to six drafts on this target: 2.0x plain decoding on held-out edits
# and 1.4x on chat; four gave 2.0x and 1.1x (`hybridspec demo eval-head`, six prompts of each).
_EAGLE3_STEPS = 3
_NGRAM = (
    *NGRAM,
    # SGLang's default of ten million nodes takes 1.3 GiB at start; the demo fills a tenth of these.
    *("--speculative-ngram-capacity", "1000000"),
)
_HYBRID = (*HYBRID, "--hybrid-policy")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One contestant.

    Attributes:
        args: its arguments of ``sglang.launch_server``.
        head: whether it loads the EAGLE3 head.
        gate: whether it loads the gate.
        compiler: whether SGLang compiles a part of it at its first start (NGRAM's automaton).
    """

    args: tuple[str, ...]
    head: bool = False
    gate: bool = False
    compiler: bool = False


ALGORITHMS: dict[str, Algorithm] = {
    "plain": Algorithm(()),
    "ngram": Algorithm(_NGRAM, compiler=True),
    "eagle3": Algorithm(eagle3(_EAGLE3_STEPS), head=True),
    "cache": Algorithm((*_HYBRID, "cache"), head=True),
    "threshold": Algorithm((*_HYBRID, "threshold"), head=True, gate=True),
    "hybrid": Algorithm((*_HYBRID, "goodput"), head=True, gate=True),
}


@dataclass(frozen=True, slots=True)
class Assets:
    """The folders that the servers load; ``head`` and ``gate`` may be missing."""

    target: Path
    head: Path | None
    gate: Path | None

    @classmethod
    def bundled(cls, target: Path, head: Path | None = None, gate: Path | None = None) -> Assets:
        """The given head and gate, else those that come with the demo, where they are there."""
        own_head, own_gate = HERE / "head", HERE / "gate"
        return cls(
            target=target,
            head=head or (own_head if (own_head / "config.json").is_file() else None),
            gate=gate or (own_gate if (own_gate / "gate.json").is_file() else None),
        )


def server_args(algorithm: Algorithm, assets: Assets, *, dtype: str, streams: int = 1) -> list[str]:
    """Arguments of ``sglang.launch_server`` for one algorithm, without host and port.

    Args:
        algorithm: which one.
        assets: folders to load.
        dtype: ``bfloat16`` for speed, ``float32`` where token ids are compared.
        streams: most requests in flight.
    """
    args = [
        *("--model-path", str(assets.target)),
        *("--dtype", dtype),
        *("--max-running-requests", str(max(4, streams))),
        # Small, because all servers share one machine's memory: room for every stream and the
        # prefixes of a round.
        *("--max-total-tokens", str(4096 + 1024 * streams)),
        # Paused servers must not take the pause for a hang.
        *("--watchdog-timeout", "36000"),
        "--enable-metrics",
        *algorithm.args,
    ]
    if algorithm.head and assets.head is not None:
        args += ["--speculative-draft-model-path", str(assets.head)]
    if algorithm.gate and assets.gate is not None:
        args += ["--hybrid-gate", str(assets.gate)]
    return args


def identify(folder: Path | None, weights: str) -> str:
    """Say which head or gate this is: its folder and the start of its weights' sha256."""
    if folder is None:
        return "none"
    digest = hashlib.sha256((folder / weights).read_bytes()).hexdigest()
    return f"{folder.parent.name}/{folder.name} (sha256 {digest[:12]})"
