"""The side-by-side demo: starts real servers, asks real questions, prints who is faster.

One server per algorithm is started once; all are paused but the one whose turn it is. This module
wires the parts; measuring, checking and reporting are in the files beside it.
"""

from __future__ import annotations

import json as json_format
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hybridspec.adapters.cache_folder import step_times_folder
from hybridspec.demo import report
from hybridspec.demo.lineup import ALGORITHMS, Assets, identify, server_args
from hybridspec.demo.lossless import check_lossless, compare_measured
from hybridspec.demo.measure import MAX_TOKENS, Block, TokenIds, block_size, measure, warm_up
from hybridspec.demo.target import TargetError, ensure_target
from hybridspec.loadtest.client import RequestFailed
from hybridspec.loadtest.server import ServerFailed, stop_on_sigterm
from hybridspec.loadtest.turns import Turns, servers_that_fit
from hybridspec.loadtest.workloads import BadWorkload, Request, load

WORKLOADS = ("edit", "tools", "chat")
DTYPE = "bfloat16"


class DemoError(RuntimeError):
    """The demo cannot run or failed. The message is one line that says what to do."""


def run_demo(
    rounds: int = 3,
    streams: int = 1,
    workloads: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
    out: Path = Path("build/demo.json"),
    json: bool = False,
    head: Path | None = None,
    gate: Path | None = None,
) -> dict[str, Any]:
    """Run the demo, print the table (or, with ``json``, one line of JSON) and write ``out``.

    Args:
        rounds: rounds; the table shows medians.
        streams: requests in flight at a time.
        workloads: bundled names, files or folders; the three bundled ones by default.
        algorithms: names from :data:`ALGORITHMS`; all by default. ``plain`` always takes part.
        out: JSON file to write; the servers' logs go to the folder ``demo-logs`` beside it.
        json: print the results as JSON on standard output; progress goes to standard error.
        head: folder of the EAGLE3 head; the demo's own by default.
        gate: folder of the gate; the demo's own by default.

    Returns:
        The results, as written.

    Raises:
        DemoError: bad arguments, missing parts, a server failed, or the check was not lossless.
    """
    stop_on_sigterm()
    console = Console(stderr=json, highlight=False)
    started = time.monotonic()
    try:
        names = _startable(_names(algorithms), algorithms is not None, console)
        target = ensure_target(progress=console.print)
        assets = _complete(Assets.bundled(target, head, gate), names)
        results = _run(names, workloads or WORKLOADS, assets, rounds, streams, out, console)
    except (TargetError, BadWorkload, ServerFailed, RequestFailed) as error:
        raise DemoError(str(error)) from error
    results["seconds"] = round(time.monotonic() - started, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json_format.dumps(results, indent=2) + "\n", encoding="utf-8")
    _show(results, out, console)
    if json:
        print(json_format.dumps(results))
    if results["lossless"] is False:
        raise DemoError(f"not lossless: token ids differ from plain decoding's; see {out}")
    return results


def _names(algorithms: Sequence[str] | None) -> list[str]:
    chosen = list(ALGORITHMS) if algorithms is None else ["plain", *algorithms]
    unknown = [name for name in chosen if name not in ALGORITHMS]
    if unknown:
        raise DemoError(f"unknown algorithm {unknown[0]!r}; choose from {', '.join(ALGORITHMS)}")
    return list(dict.fromkeys(chosen))


def _startable(names: list[str], asked: bool, console: Console) -> list[str]:
    """The names whose servers can start here; refuses if one that was asked for cannot."""
    if shutil.which(os.environ.get("CXX", "c++")):
        return names
    for name in names:
        if ALGORITHMS[name].compiler:
            why = f"{name} needs a C++ compiler, which SGLang uses at its first start"
            if asked:
                raise DemoError(f"{why}: install one (c++ or $CXX), or leave {name} out")
            console.print(f"{why}; none is here, so it is left out")
    return [name for name in names if not ALGORITHMS[name].compiler]


def _run(
    algorithms: list[str],
    workloads: Sequence[str],
    assets: Assets,
    rounds: int,
    streams: int,
    out: Path,
    console: Console,
) -> dict[str, Any]:
    messages = {Path(source).stem: load(source) for source in workloads}
    log_dir = out.parent / "demo-logs"
    settings: dict[str, Any] = {
        "dtype": DTYPE,
        "rounds": rounds,
        "streams": streams,
        "prompts_per_round": block_size(streams),
        "max_tokens": MAX_TOKENS,
        "algorithms": algorithms,
        "target": assets.target.name,
        "head": identify(assets.head, "model.safetensors"),
        "gate": identify(assets.gate, "gate.onnx"),
    }
    with _Steps(console, total=len(algorithms) * (1 + rounds * len(messages))) as steps:
        args = {
            name: server_args(ALGORITHMS[name], assets, dtype=DTYPE, streams=streams)
            for name in algorithms
        }
        steps.say("starting servers")
        with Turns(
            args,
            log_dir,
            most_alive=servers_that_fit(),
            # It measures the times of steps, for all servers like it and for later starts.
            first=None if step_times_folder().is_dir() else "hybrid",
            ready=lambda name: steps.done(f"{name}: server is up"),
            warm_up=lambda client: warm_up(client, streams),
        ) as turns:
            prompts = _tokenize(turns, messages)
            blocks = measure(
                turns, prompts, algorithms, rounds=rounds, streams=streams, done=steps.block
            )
        checked = compare_measured(blocks, DTYPE)
        if checked is None and len(algorithms) == 1:
            checked = {"lossless": None}
        if checked is None:
            name = "hybrid" if "hybrid" in algorithms else algorithms[-1]
            steps.say(f"comparing token ids of {name} and plain in float32")
            checked = check_lossless(name, assets, prompts, log_dir)
    return {
        "machine": report.machine(),
        "lossless": checked["lossless"],
        "lossless_check": checked,
        "settings": settings,
        "workloads": report.summarise(blocks, list(prompts), algorithms),
    }


def _complete(assets: Assets, algorithms: Sequence[str]) -> Assets:
    """The same assets; refuses if an algorithm's part is missing."""
    need_head = [name for name in algorithms if ALGORITHMS[name].head]
    if need_head and assets.head is None:
        raise DemoError(
            f"{need_head[0]} needs an EAGLE3 head and demo/head holds none: run 'hybridspec demo "
            "train-head' and add --head build/head, or choose --algorithm ngram alone"
        )
    for folder, weights in ((assets.head, "model.safetensors"), (assets.gate, "gate.onnx")):
        if folder is not None and not (folder / weights).is_file():
            raise DemoError(f"{folder} holds no {weights}; give another folder")
    return assets


def _tokenize(turns: Turns, messages: Mapping[str, Sequence[Request]]) -> dict[str, list[TokenIds]]:
    with turns.turn("plain") as client:
        return {
            name: [client.tokenize(request.messages) for request in requests]
            for name, requests in messages.items()
        }


def _show(results: dict[str, Any], out: Path, console: Console) -> None:
    settings, checked = results["settings"], results["lossless_check"]
    console.print(report.table(results))
    console.print(f"target {settings['target']}, EAGLE3 head {settings['head']}")
    console.print(f"gate {settings['gate']}")
    if checked["lossless"] is not None:
        same = checked["prompts"] - checked["different"]
        console.print(
            f"lossless: {checked['algorithm']} gave plain decoding's token ids on {same} of "
            f"{checked['prompts']} prompts ({checked['tokens']} tokens, {checked['dtype']})"
        )
    console.print(f"{results['seconds']:.0f} s; everything is in {out}")


class _Steps:
    """Progress: a bar on a terminal, a line per step elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total)

    def say(self, text: str) -> None:
        self._bar.update(self._task, description=text)
        if self._bar.disable:
            self._console.print(text)

    def done(self, text: str) -> None:
        self._bar.advance(self._task)
        self.say(text)

    def block(self, block: Block) -> None:
        speed = f"{block.run.tokens_per_s:.1f} tokens/s"
        self.done(f"round {block.round + 1}, {block.workload}, {block.algorithm}: {speed}")

    def __enter__(self) -> _Steps:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
