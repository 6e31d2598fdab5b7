"""``hybridspec gate``: train, evaluate and show gates. No logic of its own beyond printing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridspec.gate.errors import GateError

app = typer.Typer(help="Train, evaluate and inspect gates.", no_args_is_help=True)

Traces = Annotated[
    list[Path],
    typer.Option("--traces", help="Trace set, or a folder of sets; repeatable."),
]


@app.command()
def train(
    traces: Traces,
    out: Annotated[Path, typer.Option("--out", help="Gate folder to make or replace.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder of the target's tokenizer; adds token features to the gate."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Most epochs; training stops early.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of split and initial weights.")] = 0,
) -> None:
    """Train a gate from traces and export it."""
    _need("torch", "arctic_inference")
    try:
        from hybridspec.gate.traces import trace_sets
        from hybridspec.gate.train import TrainSettings
        from hybridspec.gate_training import train_gate

        table = _token_table(tokenizer) if tokenizer else None
        settings = TrainSettings(epochs=epochs, seed=seed)
        summary = train_gate(trace_sets(traces), out, table=table, settings=settings, say=_say)
    except GateError as error:
        _leave(error)
    _print_figures(summary["held_out"])


@app.command()
def bench(
    gate: Annotated[Path, typer.Option("--gate", help="Gate folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time the host's part of a decode step: cache drafts, features, session and policy."""
    _need("onnxruntime")
    _need("arctic_inference")
    try:
        from hybridspec.adapters.suffix.bench import time_drafts
        from hybridspec.adapters.suffix.cache import best_trees
        from hybridspec.adapters.suffix.library import LibraryTrees
        from hybridspec.gate.bench import time_gate
        from hybridspec.gate.store import load_gate

        loaded = load_gate(gate)
        ways = {trees.name: trees for trees in (LibraryTrees(), best_trees())}
        drafts = {name: time_drafts(trees) for name, trees in ways.items()}
        found = time_gate(loaded)
    except GateError as error:
        _leave(error)
    if as_json:
        print(json.dumps({"provider": loaded.provider, "times_us": found, "drafts_us": drafts}))
        return
    _say("microseconds per step")
    for title, lines in {
        **{f"drafts, {name}": each for name, each in drafts.items()},
        f"gate, {loaded.provider}": found,
    }.items():
        _say(title)
        for line in lines:
            _say(
                "  "
                + "  ".join(
                    f"{name} {value:.3g}" if value < 1 else f"{name} {value:.0f}"
                    for name, value in line.items()
                )
            )


@app.command("eval")
def evaluate(
    traces: Traces,
    gate: Annotated[
        Path | None, typer.Option("--gate", help="Gate folder; without it the baselines alone.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only the requests that training leaves out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots to this file.")
    ] = None,
) -> None:
    """Judge a gate, and the baselines that need none, on traces."""
    _need("arctic_inference")
    try:
        from hybridspec.gate.store import load_gate
        from hybridspec.gate.traces import trace_sets
        from hybridspec.gate_training import evaluate_gate

        loaded = load_gate(gate) if gate else None
        seen = evaluate_gate(trace_sets(traces), loaded, held_out=held_out, say=_say)
    except GateError as error:
        _leave(error)
    if html is not None:
        _need("plotly")
        from hybridspec.gate_report import write_report

        write_report(seen, html)
        _say(f"wrote {html}")
    if as_json:
        typer.echo(json.dumps(_without_nan(seen)))
    else:
        _print_figures(seen)


@app.command("leave-one-out")
def leave_one_out(
    traces: Traces,
    epochs: Annotated[int, typer.Option(help="Most epochs; training stops early.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge on each workload a gate that was trained on all others."""
    _need("torch", "arctic_inference")
    try:
        from hybridspec import gate_training
        from hybridspec.gate.traces import trace_sets
        from hybridspec.gate.train import TrainSettings

        settings = TrainSettings(epochs=epochs)
        seen = gate_training.leave_one_out(trace_sets(traces), settings=settings, say=_say)
    except GateError as error:
        _leave(error)
    if as_json:
        typer.echo(json.dumps(_without_nan(seen)))
    else:
        _print_figures(seen)


@app.command()
def info(gate: Annotated[Path, typer.Argument(help="Gate folder.")]) -> None:
    """Check a gate folder as the server would, and show what it is."""
    try:
        from hybridspec.gate.store import load_gate

        loaded = load_gate(gate)
    except GateError as error:
        _leave(error)
    typer.echo(f"gate       {gate}: loads, probe passed")
    typer.echo(f"provider   {loaded.provider}")
    typer.echo(f"K          {loaded.k}")
    typer.echo(f"features   {', '.join(loaded.features.names)}")
    if "held_out" in loaded.manifest.training:
        _print_figures(loaded.manifest.training["held_out"])


def load_tokenizer(name: str) -> Any:
    """A Hugging Face tokenizer.

    Raises:
        GateError: it cannot be loaded.
    """
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name)
    except (ImportError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise GateError(f"tokenizer: {name} cannot be loaded ({reason})") from None


def _token_table(tokenizer: str) -> Any:
    from hybridspec.gate.tokens import TokenTable

    loaded = load_tokenizer(tokenizer)
    return TokenTable.from_decoder(lambda token: str(loaded.decode([token])), len(loaded))


def _need(*modules: str) -> None:
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        _leave(GateError(f"this needs {names}: pip install 'hybridspec[train,suffix]'"))


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _leave(error: GateError) -> Any:
    typer.echo(f"hybridspec: {error}", err=True)
    raise typer.Exit(1)


def _print_figures(figures: dict[str, Any]) -> None:
    """One line per set and predictor."""
    typer.echo(
        f"{'set':<20}{'predictor':<14}{'rows':>8}{'MAE':>8}{'AUC':>8}{'prec>=6':>9}{'rec>=6':>8}"
        f"{'ECE':>8}"
    )
    for name, seen in figures.items():
        lines = {"gate": seen} if "mae" in seen else {}
        for predictor, line in {**lines, **seen["baselines"]}.items():
            typer.echo(
                f"{name:<20}{predictor:<14}{seen['rows']:>8}{line['mae']:>8.2f}{line['auc']:>8.3f}"
                f"{line['precision']:>9.3f}{line['recall']:>8.3f}{line.get('ece', math.nan):>8.4f}"
            )


def _without_nan(value: Any) -> Any:
    """NaN as null: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
