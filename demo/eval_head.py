"""How good an EAGLE3 head is when stock SGLang serves it: acceptance and speed by draft steps.

Prompts are those that ``train-head`` holds out, so the figures are about text the head has not
seen. Plain decoding and one EAGLE3 server for each number of draft steps take turns on the same
prompts. HYBRID has no part in this.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridspec.demo import report
from hybridspec.demo.lineup import Algorithm, Assets, identify, server_args
from hybridspec.demo.measure import TokenIds, warm_up
from hybridspec.loadtest.algorithms import eagle3
from hybridspec.loadtest.client import Answer, Run
from hybridspec.loadtest.rounds import rotate
from hybridspec.loadtest.turns import Turns, servers_that_fit

DTYPE = "bfloat16"
KINDS = ("edit", "chat")
MAX_TOKENS = 128
# Answers of one turn: few, so that a noisy machine hits all servers alike.
BLOCK = 2
PLAIN = "plain"


def held_out_prompts(count: int) -> dict[str, list[str]]:
    """The first ``count`` prompts of each kind that ``train-head`` never trains on."""
    from hybridspec.demo.eagle3.corpus import plan_prompts

    held = [entry for entry in plan_prompts(3000, seed=0) if entry.held_out]
    return {kind: [e.text for e in held if e.kind == kind][:count] for kind in KINDS}


def eval_head(
    assets: Assets,
    *,
    steps: Sequence[int],
    prompts: int,
    out: Path,
    console: Console,
) -> dict[str, Any]:
    """Measure, print a table and write ``out``.

    Args:
        assets: target and head.
        steps: draft steps to try, each by a server of its own.
        prompts: held-out prompts of each kind.
        out: JSON file to write; the servers' logs go beside it.
        console: for progress and the table.

    Returns:
        What was written: by kind and server tokens/s, speed-up against plain (medians over blocks)
        and, over all decode steps, accepted length (bonus excluded) and the share of steps with at
        least 1, 2, ... draft tokens accepted.

    Raises:
        ServerFailed: a server did not start.
    """
    lineup = {PLAIN: Algorithm(())}
    lineup |= {f"{n} steps": Algorithm(eagle3(n), head=True) for n in steps}
    args = {name: server_args(each, assets, dtype=DTYPE) for name, each in lineup.items()}
    texts = held_out_prompts(prompts)
    console.print(f"starting {len(args)} servers")
    runs: dict[tuple[str, str], list[Run]] = {}
    with Turns(
        args,
        out.parent / "eval-head-logs",
        most_alive=servers_that_fit(),
        warm_up=lambda client: warm_up(client, 1),
    ) as turns:
        with turns.turn(PLAIN) as client:
            ids = {
                kind: [client.tokenize([{"role": "user", "content": text}]) for text in asked]
                for kind, asked in texts.items()
            }
        for kind, name, block in _schedule(ids, list(args), by_server=not turns.all_alive):
            with turns.turn(name) as client:
                run = client.run(block, max_tokens=MAX_TOKENS, streams=1)
            runs.setdefault((kind, name), []).append(run)
            console.print(f"{kind}, {name}: {run.tokens_per_s:.1f} tokens/s")
    results = {
        "machine": report.machine(),
        "settings": {
            "dtype": DTYPE,
            "prompts": {kind: len(asked) for kind, asked in texts.items()},
            "max_tokens": MAX_TOKENS,
            "target": assets.target.name,
            "head": identify(assets.head, "model.safetensors"),
        },
        "kinds": {
            kind: {name: _figures(runs[kind, name], runs[kind, PLAIN]) for name in args}
            for kind in ids
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json_format.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(_table(results))
    console.print(f"head {results['settings']['head']}; everything is in {out}")
    return results


def _schedule(
    prompts: Mapping[str, Sequence[TokenIds]], names: Sequence[str], *, by_server: bool
) -> list[tuple[str, str, list[TokenIds]]]:
    """Turns as (kind, server, prompts): all servers on one block, then the next block.

    ``by_server`` lets each server do everything at once, where changing it means starting it.
    """
    blocks = [
        (kind, list(asked[at : at + BLOCK]))
        for kind, asked in prompts.items()
        for at in range(0, len(asked), BLOCK)
    ]
    if by_server:
        return [(kind, name, block) for name in names for kind, block in blocks]
    return [
        (kind, name, block)
        for index, (kind, block) in enumerate(blocks)
        for name in rotate(names, index)
    ]


def _figures(own: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    answers = [answer for run in own for answer in run.answers]
    steps = sum(answer.verify_steps for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    ratios = [mine.tokens_per_s / base.tokens_per_s for mine, base in zip(own, plain, strict=True)]
    return {
        "tokens_per_s": round(median(run.tokens_per_s for run in own), 2),
        "speedup": round(median(ratios), 3),
        "accepted_length": round(accepted / steps, 3) if steps else 0.0,
        "reached": _reached(answers),
        "steps": steps,
        "tokens": sum(answer.completion_tokens for answer in answers),
    }


def _reached(answers: Sequence[Answer]) -> list[float]:
    """Share of decode steps with at least 1, 2, ... accepted draft tokens."""
    counts: list[int] = []
    for answer in answers:
        histogram = answer.meta.get("spec_correct_drafts_histogram") or []
        counts += [0] * (len(histogram) - len(counts))
        for length, number in enumerate(histogram):
            counts[length] += number
    total = sum(counts)
    return [round(sum(counts[k:]) / total, 3) for k in range(1, len(counts))] if total else []


def _table(results: dict[str, Any]) -> Table:
    view = Table(caption="tokens/s, speed-up, accepted draft tokens per step, share reaching 1, 2…")
    view.add_column("server", no_wrap=True)
    kinds: dict[str, dict[str, Any]] = results["kinds"]
    for kind in kinds:
        view.add_column(kind, no_wrap=True)
    for name in kinds[KINDS[0]]:
        cells = []
        for kind in kinds:
            cell = kinds[kind][name]
            text = f"{cell['tokens_per_s']:5.1f}"
            if name != PLAIN:
                shares = " ".join(f"{share:.2f}" for share in cell["reached"])
                text += f"  {cell['speedup']:.2f}x  {cell['accepted_length']:.2f}  {shares}"
            cells.append(text)
        view.add_row(name, *cells)
    return view
