"""What the demo reports: medians over rounds, the machine, the table. It measures nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from hybridspec.demo.measure import Block


def summarise(
    blocks: Sequence[Block], workloads: Sequence[str], algorithms: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Medians by workload and algorithm.

    ``tokens_per_s`` is the median over rounds. ``speedup`` is the median over rounds of the ratio
    to plain decoding on the same prompts in the same round, so it is not exactly the ratio of two
    ``tokens_per_s``. ``accepted_length`` counts draft tokens per verify step over all rounds
    (bonus excluded). ``same_as_plain`` is the share of answers with plain decoding's token ids;
    below 1 in bfloat16, where near-ties depend on the shape of a batch.
    """
    cells = {(block.workload, block.algorithm, block.round): block for block in blocks}
    rounds = sorted({block.round for block in blocks})
    return {
        workload: {
            name: _cell(
                [cells[workload, name, round_] for round_ in rounds],
                [cells[workload, "plain", round_] for round_ in rounds],
            )
            for name in algorithms
        }
        for workload in workloads
    }


def _cell(own: Sequence[Block], plain: Sequence[Block]) -> dict[str, Any]:
    speeds = [block.run.tokens_per_s for block in own]
    ratios = [mine / base.run.tokens_per_s for mine, base in zip(speeds, plain, strict=True)]
    answers = [answer for block in own for answer in block.run.answers]
    expected = [answer for block in plain for answer in block.run.answers]
    steps = sum(answer.verify_steps for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    pairs = zip(answers, expected, strict=True)
    same = sum(mine.output_ids == base.output_ids for mine, base in pairs)
    return {
        "tokens_per_s": round(median(speeds), 2),
        "speedup": round(median(ratios), 3),
        "accepted_length": round(accepted / steps, 3) if steps else 0.0,
        "same_as_plain": round(same / len(answers), 3),
        "rounds": [round(speed, 2) for speed in speeds],
    }


def machine() -> dict[str, Any]:
    """The machine and the versions that the numbers belong to."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sglang": version("sglang"),
        "hybridspec": version("hybridspec"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def table(results: dict[str, Any]) -> Table:
    """Speeds, speed-ups and accepted lengths, a row per algorithm."""
    workloads: dict[str, dict[str, dict[str, Any]]] = results["workloads"]
    settings = results["settings"]
    view = Table(
        title=f"{settings['dtype']}, {settings['streams']} at a time, "
        f"median of {settings['rounds']}",
        caption="tokens/s, speed-up against plain, accepted draft tokens per step",
    )
    view.add_column("algorithm", no_wrap=True)
    for workload in workloads:
        view.add_column(workload, justify="right", no_wrap=True)
    for name in settings["algorithms"]:
        cells = (_text(each[name], name) for each in workloads.values())
        style = "bold" if name == "hybrid" else ""
        view.add_row(name, *cells, style=style)
    return view


def _text(cell: dict[str, Any], name: str) -> str:
    speed = f"{cell['tokens_per_s']:.1f}"
    if name == "plain":
        return speed
    return f"{speed}  {cell['speedup']:.2f}x  {cell['accepted_length']:.2f}"
