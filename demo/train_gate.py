"""Train the demo's gate: prompts of our own, the demo server's answers, replay, training, export.

The prompts come from the same makers as the EAGLE3 corpus, by another seed, and none of them is in
the bundled workloads that the demo measures. Nothing here knows how a gate is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridspec.demo.collect import collect
from hybridspec.demo.eagle3.corpus import plan_prompts
from hybridspec.demo.lineup import ALGORITHMS, HERE, Assets, server_args
from hybridspec.demo.target import ensure_target
from hybridspec.gate.tokens import TokenTable
from hybridspec.gate_training import train_gate
from hybridspec.loadtest.server import Server

STREAMS = 8
PROMPTS = 480
"""About 45,000 tokens of answers: 12 minutes of two cores."""
SEED = 20
"""Not the corpus builder's, so that the prompts are others."""
MAX_TOKENS = 128


def train_demo_gate(
    out: Path | None = None,
    work: Path = Path("build/gate"),
    *,
    prompts: int = PROMPTS,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Collect traces from a plain server of the embedded target and train a gate from them.

    Args:
        out: gate folder to make or replace; the demo's own by default.
        work: where prompts, traces and the server's log go; traces that are there are used again.
        prompts: how many prompts to send.
        say: told what happens, a line at a time.

    Returns:
        The training summary that stands in the gate's manifest.
    """
    target = ensure_target(progress=say)
    traces = work / "traces"
    if not traces.is_dir():
        workload = _write_workload(work / "prompts.jsonl", prompts)
        say(f"asking the target {prompts} prompts")
        _collect(target, workload, traces, work / "server.log")
    return train_gate([traces], out or HERE / "gate", table=_token_table(target), say=say)


def _write_workload(path: Path, count: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for planned in plan_prompts(count, SEED):
            record = {
                "id": f"{planned.kind}-{planned.index}",
                "workload": planned.kind,
                "kind": planned.kind,
                "messages": [{"role": "user", "content": planned.text}],
                "max_tokens": MAX_TOKENS,
            }
            file.write(json.dumps(record) + "\n")
    return path


def _collect(target: Path, workload: Path, traces: Path, log: Path) -> None:
    # Drafts change no greedy token, so the fastest server that needs no gate may answer.
    assets = Assets.bundled(target)
    algorithm = ALGORITHMS["cache" if assets.head else "plain"]
    args = server_args(algorithm, assets, dtype="bfloat16", streams=STREAMS)
    part = traces.with_name(traces.name + ".part")
    with Server(args, log_path=log) as server:
        collect(server.url, [workload], part, streams=STREAMS)
    part.rename(traces)


def _token_table(target: Path) -> TokenTable:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    return TokenTable.from_decoder(lambda token: str(tokenizer.decode([token])), len(tokenizer))
