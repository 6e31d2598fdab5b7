"""``hybridspec loadtest sweep`` and ``report``: joins servers, workloads and reports.

Everything that is asked for is checked before a server starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hybridspec.loadtest.server import stop_on_sigterm
from hybridspec.loadtest.sweep import Block, GivenServers, Settings, Sweep, SweepError, read
from hybridspec.loadtest.sweep_figures import figures
from hybridspec.loadtest.sweep_markdown import about, markdown, outcome
from hybridspec.loadtest.sweep_page import write_page
from hybridspec.loadtest.turns import Turns, servers_that_fit
from hybridspec.loadtest.workloads import Request, load

OURS, BASE = "hybrid", "plain"
DTYPE = "bfloat16"


def run_sweep(
    out: Path,
    *,
    workloads: Sequence[str],
    users: Sequence[int],
    servers: Mapping[str, str],
    algorithms: Sequence[str],
    rounds: int,
    prompts: int,
    max_tokens: int | None,
    warm: bool,
    timeout_s: float,
    head: Path | None,
    gate: Path | None,
    seed: int,
) -> None:
    """Run a sweep, or what is left of it, in ``out``.

    Args:
        out: folder of the sweep.
        workloads: bundled names, files or folders.
        users: concurrencies.
        servers: addresses by name; empty: the demo's servers are started.
        algorithms: which of the demo's algorithms; empty for all.
        rounds: see :class:`Settings`, as are the next four.
        prompts: least prompts of a block.
        max_tokens: most tokens of an answer.
        warm: whether caches are warm.
        timeout_s: most seconds of one block.
        head: EAGLE3 head for the demo's servers; the demo's own by default.
        gate: gate for the demo's servers; the demo's own by default.
        seed: of the order of the prompts.

    Raises:
        SweepError, ServerFailed, BadWorkload, TargetError: one line, says what to do.
    """
    stop_on_sigterm()
    console = Console(stderr=True, highlight=False)
    requests = _load(workloads, seed)
    names = list(servers) or _demo_names(algorithms)
    settings = Settings(
        algorithms=tuple(names),
        workloads=tuple(requests),
        users=tuple(users),
        rounds=rounds,
        prompts=prompts,
        max_tokens=max_tokens,
        warm=warm,
        timeout_s=timeout_s,
    )
    if servers:
        sweep = Sweep(out, settings, {"note": "Servers were given by address."})
        _run(sweep, GivenServers(servers), requests, console)
        return
    args, facts = _demo_servers(names, max(users), head, gate)
    alive = servers_that_fit()
    sweep = Sweep(out, settings, facts, by_algorithm=alive < len(names))
    if not sweep.waiting:
        console.print(f"nothing is left to do in {out}")
        return
    needed = {block.algorithm for block in sweep.waiting}
    console.print(f"starting {len(needed)} servers")
    with Turns(
        {name: each for name, each in args.items() if name in needed},
        out / "logs",
        most_alive=alive,
        first=OURS,  # it may measure step times, for later starts too
        ready=lambda name: console.print(f"{name}: server is up"),
        warm_up=lambda client: _warm_up(client, max(users)),
    ) as turns:
        _run(sweep, turns, requests, console)


def report(out: Path, *, title: str, html: Path | None, text: Path | None, as_json: bool) -> None:
    """Write and print what a sweep found.

    Raises:
        SweepError: there is no sweep in ``out``.
    """
    header, lines = read(out)
    names = header["settings"]["algorithms"]
    ours = OURS if OURS in names else names[-1]
    base = BASE if BASE in names else names[0]
    found = figures(header, lines, ours=ours, base=base)
    document = markdown(found, title)
    if text is not None:
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text(document, encoding="utf-8")
    if html is not None and found["cells"]:
        write_page(found, lines, f"{about(found)}\n\n{outcome(found)}", title, html)
    print(json.dumps(found) if as_json else document)


def _run(
    sweep: Sweep,
    contestants: Turns | GivenServers,
    requests: Mapping[str, Sequence[Request]],
    console: Console,
) -> None:
    total, began = len(sweep.waiting), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
    task = bar.add_task("", total=total)
    done = 0

    def note(block: Block, outcome: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - began) / done * (total - done) / 60
        what = outcome.get("failed") or f"{outcome['tokens_per_s']:.1f} tokens/s"
        bar.update(task, advance=1, description=f"{left:.0f} min left")
        console.print(
            f"{done}/{total} round {block.round + 1}, {block.users} users, {block.workload}, "
            f"{block.algorithm}: {what} ({left:.0f} min left)",
            soft_wrap=True,
        )

    with bar:
        sweep.run(contestants, requests, note)


def _load(workloads: Sequence[str], seed: int) -> dict[str, list[Request]]:
    found = {Path(source).stem: load(source, seed=seed) for source in workloads}
    if len(found) < len(workloads):
        raise SweepError(f"two workloads have the same name: {', '.join(workloads)}")
    return found


def _demo_names(algorithms: Sequence[str]) -> list[str]:
    from hybridspec.demo.lineup import ALGORITHMS

    chosen = list(algorithms or ALGORITHMS)
    unknown = [name for name in chosen if name not in ALGORITHMS]
    if unknown:
        raise SweepError(
            f"unknown algorithm {unknown[0]!r}; choose from {', '.join(ALGORITHMS)}, or give "
            "--server NAME=URL"
        )
    return chosen


def _demo_servers(
    names: Sequence[str], streams: int, head: Path | None, gate: Path | None
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    from hybridspec.demo.lineup import ALGORITHMS, Assets, identify, server_args
    from hybridspec.demo.report import machine
    from hybridspec.demo.target import ensure_target

    assets = Assets.bundled(ensure_target(), head, gate)
    args = {
        name: server_args(ALGORITHMS[name], assets, dtype=DTYPE, streams=streams) for name in names
    }
    facts = {
        "machine": machine(),
        "target": assets.target.name,
        "head": identify(assets.head, "model.safetensors"),
        "gate": identify(assets.gate, "gate.onnx"),
        "dtype": DTYPE,
        "note": "Nothing here was run on a GPU.",
    }
    return args, facts


def _warm_up(client: Any, streams: int) -> None:
    from hybridspec.demo.measure import warm_up

    warm_up(client, streams)
