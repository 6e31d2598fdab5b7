"""A sweep's figures as Markdown: one table by concurrency, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridspec.loadtest.sweep_figures import NEAR_BEST, OF_PLAIN


def markdown(figures: Mapping[str, Any], title: str) -> str:
    """One document."""
    settings = figures["settings"]
    names = settings["algorithms"]
    parts = [f"# {title}", about(figures), outcome(figures)]
    for users in settings["users"]:
        cells = [cell for cell in figures["cells"] if cell["users"] == users]
        if cells:
            parts += [
                f"## {users} {'user' if users == 1 else 'users'}",
                _table(cells, names, figures),
            ]
    if figures["failed"]:
        failed = [
            f"- round {line['round'] + 1}, {line['users']} users, {line['workload']}, "
            f"{line['algorithm']}: {line['failed']}"
            for line in figures["failed"]
        ]
        parts += ["## Failed blocks", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def about(figures: Mapping[str, Any]) -> str:
    """A paragraph on what was measured."""
    settings, facts = figures["settings"], figures["facts"]
    machine = facts.get("machine", {})
    what = [
        f"{name} {facts[name]}" for name in ("target", "head", "gate", "dtype") if facts.get(name)
    ]
    where = (
        [
            f"{machine['cores']} cores of {machine['processor']}",
            f"SGLang {machine['sglang']}",
        ]
        if machine
        else []
    )
    caches = "warm caches (every prompt asked before)" if settings["warm"] else "cold caches"
    tokens = settings["max_tokens"] or "their own number of"
    return (
        f"Measured: {', '.join([*what, *where])}. {settings['rounds']} rounds, algorithms in turn "
        f"on the same prompts, at least {settings['prompts']} prompts a block, at most {tokens} "
        f"tokens an answer, {caches}, no prompt twice in a block. Cells are output tokens a second "
        "(median over rounds) and the speed-up over plain decoding (median over rounds of the "
        f"ratio on the same prompts). {facts.get('note', '')}"
    ).strip()


def outcome(figures: Mapping[str, Any]) -> str:
    """A paragraph on what came out."""
    seen = figures["summary"]
    if not seen:
        return f"`{figures['ours']}` was not measured beside another algorithm."
    lines = [
        f"`{figures['ours']}` reaches {NEAR_BEST:.2f} of the best other algorithm in "
        f"{seen['near_best']:.0%} of {seen['cells']} cells; geometric mean "
        f"{seen['geomean_against_best']:.2f}.",
    ]
    each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in seen["geomean_against"].items())
    lines.append(f"Geometric means over single algorithms: {each}.")
    if seen["worst_against_plain"] is not None:
        lines.append(
            f"Its least speed against `{figures['base']}` is {seen['worst_against_plain']:.2f} "
            f"(goal {OF_PLAIN:.2f})."
        )
    return " ".join(lines)


def _table(
    cells: Sequence[Mapping[str, Any]], names: Sequence[str], figures: Mapping[str, Any]
) -> str:
    rows = [
        ["workload", *names, f"{figures['ours']} / best other", "TPOT ms plain / ours"],
        ["---"] + ["---:"] * (len(names) + 2),
    ]
    for cell in cells:
        of = cell["algorithms"]
        row = [cell["workload"], *(_speed(of.get(name), name == figures["base"]) for name in names)]
        ratio = f"{cell['against_best']:.2f} ({cell['best']})" if "best" in cell else ""
        tpot = " / ".join(
            f"{of[name]['tpot_ms']:.0f}"
            for name in (figures["base"], figures["ours"])
            if name in of and of[name]["tpot_ms"] is not None
        )
        rows.append([*row, ratio, tpot])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _speed(of: Mapping[str, Any] | None, base: bool) -> str:
    if of is None:
        return ""
    ratio = "" if base or of["of_plain"] is None else f" ({of['of_plain']:.2f}x)"
    return f"{of['tokens_per_s']:.1f}{ratio}"
