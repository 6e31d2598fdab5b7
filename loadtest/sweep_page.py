"""A sweep's figures as one self-contained HTML page that people look at."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hybridspec.adapters.base import LENGTH_BINS
from hybridspec.loadtest.server_metrics import SOURCES

Figures = Mapping[str, Any]

_PALETTE = ("#3d5a80", "#e09f3e", "#7b2d8b", "#c44536", "#8d99ae", "#386fa4", "#59515e")
_OURS = "#0b6e4f"
_SOURCE_COLOURS = {"none": "#c9c9c9", "cache": "#e09f3e", "model": "#3d5a80"}
_STYLE = (
    "body{font:15px system-ui;margin:2rem auto;max-width:1180px;padding:0 1rem;color:#222}"
    "h1{margin-bottom:.2rem}h2{margin-top:2.2rem}p{max-width:60rem}"
)


def write_page(
    figures: Figures, lines: Sequence[Mapping[str, Any]], about: str, title: str, path: Path
) -> None:
    """Write the page.

    Args:
        figures: as :func:`hybridspec.loadtest.sweep_figures.figures` returns them.
        lines: outcomes of all blocks, for what the server did over time.
        about: a paragraph on what was measured, and one on what came out.
        title: heading.
        path: HTML file to make or replace.
    """
    colours = _colours(figures)
    sections = [
        ("Throughput", _by_users(figures, colours, "tokens_per_s", "tokens/s")),
        ("Time per output token", _by_users(figures, colours, "tpot_ms", "TPOT p50, ms")),
        (f"Speed-up of {figures['ours']}", _heat(figures)),
    ]
    served = [
        line
        for line in lines
        if line["algorithm"] == figures["ours"] and "failed" not in line and line.get("server")
    ]
    if served:
        sections += [
            (f"Drafts of {figures['ours']} over time", _shares(served)),
            ("Accepted lengths of verified drafts", _lengths(served)),
            ("Expected against accepted", _expected(served)),
        ]
    body = [
        f"<h2>{html.escape(heading)}</h2>"
        + plot.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, (heading, plot) in enumerate(sections)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}"
        f"</title><style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        + "".join(f"<p>{html.escape(part)}</p>" for part in about.split("\n\n"))
        + "".join(body)
        + "</body></html>\n",
        encoding="utf-8",
    )


def _colours(figures: Figures) -> dict[str, str]:
    others = [name for name in figures["settings"]["algorithms"] if name != figures["ours"]]
    found = {name: _PALETTE[at % len(_PALETTE)] for at, name in enumerate(others)}
    return {**found, figures["ours"]: _OURS}


def _by_users(figures: Figures, colours: Mapping[str, str], key: str, unit: str) -> go.Figure:
    """``key`` against users, a panel for each workload, a line for each algorithm."""
    workloads = list(dict.fromkeys(cell["workload"] for cell in figures["cells"]))
    columns = min(3, len(workloads))
    rows = -(-len(workloads) // columns)
    plot = make_subplots(rows, columns, subplot_titles=workloads, x_title="users", y_title=unit)
    for place, workload in enumerate(workloads):
        cells = [cell for cell in figures["cells"] if cell["workload"] == workload]
        for name, colour in colours.items():
            seen = [cell for cell in cells if name in cell["algorithms"]]
            plot.add_scatter(
                x=[str(cell["users"]) for cell in seen],
                y=[cell["algorithms"][name][key] for cell in seen],
                name=name,
                legendgroup=name,
                showlegend=place == 0,
                line={"color": colour, "width": 3 if name == figures["ours"] else 1.5},
                row=place // columns + 1,
                col=place % columns + 1,
            )
    plot.update_yaxes(rangemode="tozero")
    plot.update_layout(height=120 + 260 * rows, margin={"t": 40, "b": 60})
    return plot


def _heat(figures: Figures) -> go.Figure:
    """Speed-up over plain decoding and over the best other algorithm, by workload and users."""
    workloads = list(dict.fromkeys(cell["workload"] for cell in figures["cells"]))
    users = [str(count) for count in figures["settings"]["users"]]
    kinds = (("against_plain", f"over {figures['base']}"), ("against_best", "over the best other"))
    plot = make_subplots(1, 2, subplot_titles=[title for _, title in kinds], y_title="users")
    for column, (kind, _) in enumerate(kinds, 1):
        values = {
            (cell["workload"], str(cell["users"])): cell.get(kind) for cell in figures["cells"]
        }
        grid = [[values.get((workload, count)) for workload in workloads] for count in users]
        plot.add_heatmap(
            x=workloads,
            y=users,
            z=grid,
            texttemplate="%{z:.2f}",
            colorscale=[[0, "#c44536"], [0.5, "#ffffff"], [1, _OURS]],
            zmin=0.5,
            zmax=1.5,
            showscale=False,
            row=1,
            col=column,
        )
    plot.update_layout(height=170 + 50 * len(users), margin={"t": 40, "b": 60})
    return plot


def _shares(served: Sequence[Mapping[str, Any]]) -> go.Figure:
    plot = go.Figure()
    blocks = sorted(served, key=lambda line: line["began"])
    labels = [f"{each['workload']}, {each['users']} users" for each in blocks]
    for source in SOURCES:
        plot.add_bar(
            x=list(range(1, len(blocks) + 1)),
            y=[each["server"]["row_share"][source] for each in blocks],
            hovertext=labels,
            name=source,
            marker_color=_SOURCE_COLOURS[source],
        )
    plot.update_layout(
        barmode="stack",
        bargap=0.05,
        height=320,
        xaxis_title="block, in the order in which they ran",
        yaxis={"title": "share of requests x steps", "tickformat": ".0%"},
        margin={"t": 20},
    )
    return plot


def _lengths(served: Sequence[Mapping[str, Any]]) -> go.Figure:
    plot = go.Figure()
    for source in SOURCES[1:]:
        counts = [
            sum(each["server"]["accepted_lengths"][source][at] for each in served)
            for at in range(len(LENGTH_BINS))
        ]
        total = sum(counts)
        plot.add_bar(
            x=list(LENGTH_BINS),
            y=[count / total if total else 0.0 for count in counts],
            name=f"{source} ({total:,.0f} drafts)",
            marker_color=_SOURCE_COLOURS[source],
        )
    plot.update_layout(
        height=320,
        xaxis={"title": "accepted draft tokens (bonus excluded)", "type": "category"},
        yaxis={"title": "share of verified drafts", "tickformat": ".0%"},
        margin={"t": 20},
    )
    return plot


def _expected(served: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Mean accepted against mean expected length, by bin of the latter."""
    plot = go.Figure()
    most = 1.0
    for source in SOURCES[1:]:
        points = []
        for at in range(len(LENGTH_BINS)):
            rows, expected, accepted = (
                sum(each["server"]["expected"][source][at][part] for each in served)
                for part in range(3)
            )
            if rows:
                points.append((expected / rows, accepted / rows, rows))
        most = max([most, *(value for x, y, _ in points for value in (x, y))])
        plot.add_scatter(
            x=[x for x, _, _ in points],
            y=[y for _, y, _ in points],
            text=[f"{rows:,.0f} drafts" for _, _, rows in points],
            mode="lines+markers",
            name=source,
            line={"color": _SOURCE_COLOURS[source]},
            marker={"size": 9},
        )
    plot.add_scatter(
        x=[0, most], y=[0, most], mode="lines", name="equal", line={"color": "#999", "dash": "dot"}
    )
    plot.update_layout(
        height=380,
        xaxis_title="accepted tokens that the policy expected, mean of a bin",
        yaxis_title="accepted tokens, mean",
        margin={"t": 20},
    )
    return plot
