"""The page of ``hybridspec gate eval --html``: plots of what the command prints, in one file."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

Figures = dict[str, Any]

_COLOURS = {
    "gate": "#0b6e4f",
    "score": "#c44536",
    "match_length": "#e09f3e",
    "online_table": "#3d5a80",
    "paper": "#7b2d8b",
}
_TEXT = (
    "Every output position that has a cache draft, replayed. A hit is a draft of which at least "
    "six tokens are accepted (bonus token excluded)."
)


def write_report(figures: Figures, path: Path) -> None:
    """Write one self-contained page.

    Args:
        figures: as :func:`hybridspec.gate_training.evaluate_gate` returns them.
        path: HTML file to make or replace.
    """
    plots = [_errors(figures), _curves(figures)]
    if any("reliability" in seen for seen in figures.values()):
        plots.append(_reliability(figures))
    parts = [
        plot.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, plot in enumerate(plots)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Gate</title><style>"
        "body{font:15px system-ui;margin:2rem auto;max-width:1100px}"
        "table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:right;"
        "border-bottom:1px solid #ddd}td:first-child,th:first-child,td:nth-child(2),"
        "th:nth-child(2){text-align:left}</style></head><body><h1>Gate</h1>"
        f"<p>{_TEXT}</p>{_table(figures)}{''.join(parts)}</body></html>\n",
        encoding="utf-8",
    )


def _predictors(seen: Figures) -> dict[str, Figures]:
    gate = {"gate": seen} if "mae" in seen else {}
    return {**gate, **seen["baselines"]}


def _table(figures: Figures) -> str:
    names = ("mae", "auc", "precision", "recall", "precision_at_recall_0.7", "ece", "regret")
    head = "".join(f"<th>{name}</th>" for name in ("set", "predictor", *names))
    lines = []
    for name, seen in figures.items():
        for predictor, line in _predictors(seen).items():
            cells = [html.escape(name), html.escape(predictor)]
            cells += [f"{line[key]:.3f}" if key in line else "" for key in names]
            lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _errors(figures: Figures) -> go.Figure:
    plot = go.Figure(layout={"title": "Mean absolute error, draft tokens", "barmode": "group"})
    predictors = list(dict.fromkeys(p for seen in figures.values() for p in _predictors(seen)))
    for predictor in predictors:
        errors = [_predictors(seen).get(predictor, {}).get("mae") for seen in figures.values()]
        colour = _COLOURS.get(predictor)
        plot.add_bar(x=list(figures), y=errors, name=predictor, marker_color=colour)
    return plot


def _grid(figures: Figures, title: str, x: str, y: str) -> go.Figure:
    columns = min(3, len(figures))
    rows = -(-len(figures) // columns)
    plot = make_subplots(rows, columns, subplot_titles=list(figures), x_title=x, y_title=y)
    plot.update_layout(title=title, height=120 + 300 * rows)
    plot.update_xaxes(range=[0, 1.02])
    plot.update_yaxes(range=[0, 1.02])
    return plot


def _curves(figures: Figures) -> go.Figure:
    plot = _grid(figures, "Precision and recall of hits", "recall", "precision")
    columns = min(3, len(figures))
    for number, seen in enumerate(figures.values()):
        at = {"row": number // columns + 1, "col": number % columns + 1}
        for predictor, points in seen["curves"].items():
            if predictor not in _COLOURS or not points:
                continue
            plot.add_scatter(
                x=[point[0] for point in points],
                y=[point[1] for point in points],
                name=predictor,
                legendgroup=predictor,
                showlegend=number == 0,
                line_color=_COLOURS[predictor],
                **at,
            )
    return plot


def _reliability(figures: Figures) -> go.Figure:
    shown = {name: seen for name, seen in figures.items() if "reliability" in seen}
    plot = _grid(
        shown, "Calibration of the gate's chance of a hit", "predicted chance", "share of hits"
    )
    columns = min(3, len(shown))
    for number, seen in enumerate(shown.values()):
        at = {"row": number // columns + 1, "col": number % columns + 1}
        plot.add_scatter(
            x=[0, 1], y=[0, 1], line={"color": "#bbb", "dash": "dot"}, showlegend=False, **at
        )
        bins = seen["reliability"]
        plot.add_scatter(
            x=[each[0] for each in bins],
            y=[each[1] for each in bins],
            text=[f"{each[2]:.0f} rows" for each in bins],
            mode="lines+markers",
            line_color=_COLOURS["gate"],
            showlegend=False,
            **at,
        )
    return plot
