"""What a sweep's blocks add up to: medians, spreads and ratios by cell. Measures nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any

Line = Mapping[str, Any]
Runs = dict[str, dict[int, Line]]
"""Outcomes of one cell by algorithm and round."""

# What the project promises: HYBRID in this share of the best other algorithm in nine of ten cells,
# and never below this share of plain decoding.
NEAR_BEST, OF_PLAIN = 0.98, 0.93


def figures(
    header: Mapping[str, Any], lines: Sequence[Line], *, ours: str, base: str
) -> dict[str, Any]:
    """Figures of a sweep.

    Ratios are medians over rounds of ratios on the same prompts in the same round.

    Args:
        header: ``settings`` and ``facts``.
        lines: outcomes of blocks; of a block that was run again, the last counts.
        ours: the algorithm that the others are compared with.
        base: plain decoding.

    Returns:
        ``settings``, ``facts``, ``cells``: each with ``workload``, ``users``, ``algorithms`` (by
        name ``tokens_per_s``, ``spread`` (least, most), ``tpot_ms``, ``ttft_ms``,
        ``accepted_length`` where the server tells, ``of_plain``) and, where ours was measured,
        ``against_best`` (with ``best``, the name of the best other) and ``against_plain``;
        ``summary`` of these ratios, and ``failed`` blocks.
    """
    last = {
        (line["round"], line["users"], line["workload"], line["algorithm"]): line for line in lines
    }
    by_cell: dict[tuple[str, int], dict[str, dict[int, Line]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for (round_, users, workload, name), line in last.items():
        if "failed" not in line:
            by_cell[workload, users][name][round_] = line
    settings = header["settings"]
    cells = [
        _cell(workload, users, by_cell[workload, users], ours, base)
        for workload in settings["workloads"]
        for users in settings["users"]
        if by_cell[workload, users]
    ]
    return {
        **header,
        "ours": ours,
        "base": base,
        "cells": cells,
        "summary": _summary(cells, ours),
        "failed": [dict(line) for line in last.values() if "failed" in line],
    }


def _cell(
    workload: str, users: int, runs: Mapping[str, Mapping[int, Line]], ours: str, base: str
) -> dict[str, Any]:
    algorithms = {name: _algorithm(of, runs.get(base, {})) for name, of in runs.items()}
    cell: dict[str, Any] = {"workload": workload, "users": users, "algorithms": algorithms}
    others = {name: runs[name] for name in runs if name != ours}
    if ours in runs and others:
        ratios = {name: _ratio(runs[ours], of) for name, of in others.items()}
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if known:
            # The best other is the one that ours is least ahead of.
            best = min(known, key=lambda name: known[name])
            cell |= {"best": best, "against_best": known[best]}
        cell["against_plain"] = ratios.get(base)
    return cell


def _algorithm(of: Mapping[int, Line], plain: Mapping[int, Line]) -> dict[str, Any]:
    speeds = [line["tokens_per_s"] for line in of.values()]
    accepted = [line["server"]["accepted_length"] for line in of.values() if line.get("server")]
    return {
        "tokens_per_s": round(median(speeds), 2),
        "spread": [min(speeds), max(speeds)],
        "rounds": len(speeds),
        "tpot_ms": _median_ms(of, "TPOT"),
        "ttft_ms": _median_ms(of, "TTFT"),
        "accepted_length": round(median(accepted), 3) if accepted else None,
        "of_plain": _ratio(of, plain),
    }


def _median_ms(of: Mapping[int, Line], kind: str) -> float | None:
    found = [line["ms"][kind]["p50"] for line in of.values() if kind in line["ms"]]
    return round(median(found), 1) if found else None


def _ratio(mine: Mapping[int, Line], other: Mapping[int, Line]) -> float | None:
    both = sorted(mine.keys() & other.keys())
    ratios = [mine[at]["tokens_per_s"] / other[at]["tokens_per_s"] for at in both]
    return round(median(ratios), 3) if ratios else None


def _summary(cells: Sequence[Mapping[str, Any]], ours: str) -> dict[str, Any]:
    best = [cell["against_best"] for cell in cells if cell.get("against_best")]
    plain = [cell["against_plain"] for cell in cells if cell.get("against_plain")]
    if not best:
        return {}
    return {
        "cells": len(best),
        "near_best": round(sum(ratio >= NEAR_BEST for ratio in best) / len(best), 3),
        "geomean_against_best": round(exp(sum(map(log, best)) / len(best)), 3),
        "worst_against_plain": min(plain) if plain else None,
        "geomean_against": _against_each(cells, ours),
    }


def _against_each(cells: Sequence[Mapping[str, Any]], ours: str) -> dict[str, float]:
    """Geometric mean of ours over each other algorithm, in the cells that have both."""
    logs: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        of = cell["algorithms"]
        for name in of:
            if ours in of and name != ours:
                logs[name].append(log(of[ours]["tokens_per_s"] / of[name]["tokens_per_s"]))
    return {name: round(exp(sum(of) / len(of)), 3) for name, of in logs.items()}
