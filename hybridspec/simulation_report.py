"""``hybridspec simulate``: runs the simulation and shows it as table, JSON and page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots
from rich.console import Console
from rich.table import Table

from hybridspec import simulation
from hybridspec.gate.store import load_gate
from hybridspec.gate.traces import trace_sets

_COLOURS = {
    "eagle3": "#3d5a80",
    "cache": "#c44536",
    "score": "#e09f3e",
    "threshold": "#7b2d8b",
    "table": "#8d99ae",
    "goodput": "#52b788",
    "merged": "#0b6e4f",
    "oracle": "#222222",
}


def show(
    traces: Sequence[Path],
    *,
    profile: str,
    batches: Sequence[int],
    gate: Path | None,
    ablations: bool,
    model_steps: int,
    model_free: int,
    as_json: bool,
    html: Path | None,
) -> None:
    """Simulate and print; progress goes to standard error.

    Raises:
        GateError: see :func:`hybridspec.simulation.run`.
    """
    console, progress = Console(), Console(stderr=True)
    results = simulation.run(
        trace_sets(traces),
        profile=profile,
        batches=batches,
        gate=load_gate(gate) if gate is not None else None,
        ablations=ablations,
        model_steps=model_steps,
        model_free=model_free,
        say=lambda line: progress.print(line, highlight=False, soft_wrap=True),
    )
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        _plot(results).write_html(html, include_plotlyjs=True)
        progress.print(f"wrote {html}")
    if as_json:
        print(json.dumps(results))
    else:
        console.print(_table(results))
        console.print(_latency_table(results))


def _table(results: dict[str, Any]) -> Table:
    view = Table(
        title=f"simulated, profile {results['profile']}",
        caption="speed-up over plain decoding; merged's share of the oracle's",
    )
    names = list(results["cells"][0]["speedup"])
    for title in ("workload", "batch", *names, "of oracle"):
        view.add_column(title, justify="left" if title == "workload" else "right")
    for cell in results["cells"]:
        seen = cell["speedup"]
        best = max(seen[name] for name in names if name != "oracle")
        cells = [
            f"[bold]{seen[name]:.2f}[/bold]" if seen[name] == best else f"{seen[name]:.2f}"
            for name in names
        ]
        share = f"{seen['merged'] / seen['oracle']:.0%}"
        view.add_row(cell["workload"], str(cell["batch"]), *cells, share)
    return view


def _latency_table(results: dict[str, Any]) -> Table:
    names = list(results["cells"][0]["tpot_ms"])
    view = Table(
        title="simulated TPOT, ms",
        caption="over requests: 95th percentile, and the mean of the slowest tenth",
    )
    for title in ("workload", "batch", *names):
        view.add_column(title, justify="left" if title == "workload" else "right")
    for cell in results["cells"]:
        seen = cell["tpot_ms"]
        cells = [f"{seen[name]['p95']:.1f} {seen[name]['slowest_decile']:.1f}" for name in names]
        view.add_row(cell["workload"], str(cell["batch"]), *cells)
    return view


def _plot(results: dict[str, Any]) -> go.Figure:
    """Speed-up against batch size, a panel for each workload."""
    workloads = list(dict.fromkeys(cell["workload"] for cell in results["cells"]))
    plot = make_subplots(
        1, len(workloads), subplot_titles=workloads, shared_yaxes=True, x_title="batch"
    )
    for column, workload in enumerate(workloads, 1):
        cells = [cell for cell in results["cells"] if cell["workload"] == workload]
        for name, colour in _COLOURS.items():
            plot.add_scatter(
                x=[str(cell["batch"]) for cell in cells],
                y=[cell["speedup"][name] for cell in cells],
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                line={"color": colour, "dash": "dot" if name == "oracle" else "solid"},
                row=1,
                col=column,
            )
    plot.update_layout(
        title=f"Simulated speed-up over plain decoding, profile {results['profile']}", height=460
    )
    return plot
