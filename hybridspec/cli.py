"""The ``hybridspec`` command: one sub-command per room, each imported only when it is used.

Nothing but typer is imported here, so that ``--help`` is instant and works in an installation that
has the gate alone. This module contains no logic of its own.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    help="Gated hybrid speculative decoding for SGLang.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
demo_app = typer.Typer(help="The embedded target and the side-by-side demo.")
traces_app = typer.Typer(help="Traces for training the gate.", no_args_is_help=True)
app.add_typer(demo_app, name="demo")
loadtest_app = typer.Typer(help="Load tests.", no_args_is_help=True)
app.add_typer(traces_app, name="traces")
app.add_typer(loadtest_app, name="loadtest")

# The rooms a command needs beyond the base installation, and the extra that brings them.
_SERVING = (("sglang", "sglang"), ("httpx", "loadtest"))


def _need(*modules: tuple[str, str]) -> None:
    missing = [(name, extra) for name, extra in modules if find_spec(name) is None]
    if missing:
        names = ", ".join(name for name, _ in missing)
        extras = ",".join(extra for _, extra in missing)
        _leave(f"this command needs {names}: pip install 'hybridspec[{extras}]'")


def _leave(message: str) -> NoReturn:
    typer.echo(f"hybridspec: {message}", err=True)
    raise typer.Exit(1)


Rounds = Annotated[int, typer.Option(min=1, help="Rounds; the table shows their medians.")]
Streams = Annotated[int, typer.Option(min=1, help="Requests in flight at a time.")]
Many = Annotated[
    list[str] | None, typer.Option(help="Repeat for several; all by default.", show_default=False)
]
Out = Annotated[Path, typer.Option(help="Where the results go, as JSON.")]


@demo_app.callback(invoke_without_command=True)
def demo(context: typer.Context) -> None:
    """Run the side-by-side demo (the same as ``demo run``)."""
    if context.invoked_subcommand is None:
        demo_run()


@demo_app.command("run")
def demo_run(
    rounds: Rounds = 3,
    streams: Streams = 1,
    workload: Many = None,
    algorithm: Many = None,
    out: Out = Path("build/demo.json"),
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON only.")] = False,
    head: Annotated[Path | None, typer.Option(help="Another EAGLE3 head.")] = None,
    gate: Annotated[Path | None, typer.Option(help="Another gate.")] = None,
) -> None:
    """Six algorithms take turns on the same prompts; prints speeds and speed-ups."""
    _need(*_SERVING)
    from hybridspec.demo.run import DemoError, run_demo

    try:
        run_demo(
            rounds=rounds,
            streams=streams,
            workloads=workload or None,
            algorithms=algorithm or None,
            out=out,
            json=json,
            head=head,
            gate=gate,
        )
    except DemoError as error:
        _leave(str(error))


@demo_app.command("target")
def demo_target() -> None:
    """Build the embedded target into the cache folder and print where it is."""
    _need(("transformers", "sglang"), ("gguf", "sglang"))
    from hybridspec.demo.target import TargetError, ensure_target

    try:
        typer.echo(str(ensure_target()))
    except TargetError as error:
        _leave(str(error))


@demo_app.command("train-head")
def demo_train_head(
    out: Annotated[Path, typer.Option(help="Head folder to write.")] = Path("build/head"),
    work: Annotated[Path, typer.Option(help="Corpus and checkpoints; several GB.")] = Path(
        "build/head-work"
    ),
    prompts: Annotated[int, typer.Option(min=1, help="Prompts that the target answers.")] = 4400,
    corpus_minutes: Annotated[float | None, typer.Option(help="Limit of the corpus stage.")] = None,
    train_minutes: Annotated[
        float | None, typer.Option(help="Limit of the training stage.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the training stage.")] = "cpu",
) -> None:
    """Train an EAGLE3 head for the embedded target; continues where a stopped run was."""
    _need(("torch", "train"), ("transformers", "sglang"))
    from hybridspec.demo.eagle3.pipeline import train_head
    from hybridspec.demo.target import TargetError, ensure_target

    try:
        target = ensure_target(progress=typer.echo)
    except TargetError as error:
        _leave(str(error))
    train_head(
        target,
        work,
        out,
        prompts=prompts,
        corpus_s=None if corpus_minutes is None else 60 * corpus_minutes,
        train_s=None if train_minutes is None else 60 * train_minutes,
        device=device,
        progress=typer.echo,
    )


@demo_app.command("eval-head")
def demo_eval_head(
    head: Annotated[Path | None, typer.Option(help="Head folder; demo/head by default.")] = None,
    steps: Annotated[
        list[int] | None, typer.Option(min=1, max=16, help="Draft steps; repeat for several.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts of each kind.")] = 12,
    out: Out = Path("build/eval-head.json"),
) -> None:
    """Acceptance and speed of an EAGLE3 head in stock SGLang, on prompts that were held out."""
    _need(*_SERVING)
    from rich.console import Console

    from hybridspec.demo.eval_head import eval_head
    from hybridspec.demo.lineup import Assets
    from hybridspec.demo.target import TargetError, ensure_target
    from hybridspec.loadtest.client import RequestFailed
    from hybridspec.loadtest.server import ServerFailed, stop_on_sigterm

    stop_on_sigterm()
    try:
        assets = Assets.bundled(ensure_target(), head=head)
        eval_head(assets, steps=steps or [4], prompts=prompts, out=out, console=Console())
    except (TargetError, ServerFailed, RequestFailed) as error:
        _leave(str(error))


@demo_app.command("lengths")
def demo_lengths(
    traces: Annotated[Path, typer.Option(help="Trace set of the embedded target.")],
    out: Annotated[Path, typer.Option(help="Trace set to write.")],
    steps: Annotated[int, typer.Option(min=1, max=16, help="Draft tokens of a chain.")] = 7,
    head: Annotated[Path | None, typer.Option(help="Head folder; demo/head by default.")] = None,
) -> None:
    """Add EAGLE3's accepted length at every position to traces, for the simulator."""
    _need(("torch", "train"), ("safetensors", "sglang"), ("pyarrow", "loadtest"))
    from rich.progress import track

    from hybridspec.demo.eagle3.lengths import with_lengths
    from hybridspec.demo.lineup import Assets
    from hybridspec.demo.target import TargetError, ensure_target
    from hybridspec.gate.errors import GateError
    from hybridspec.gate.traces import SUFFIX, read_traces, write_traces

    try:
        assets = Assets.bundled(ensure_target(), head)
        if assets.head is None:
            _leave("demo/head holds no head; train one with 'hybridspec demo train-head'")
        found = read_traces(traces)
        done = with_lengths(found, assets.target, assets.head, steps)
        out.mkdir(parents=True, exist_ok=True)
        write_traces(
            out / f"lengths{SUFFIX}", track(done, total=len(found), description=str(traces))
        )
    except (TargetError, GateError, OSError) as error:
        _leave(str(error))
    typer.echo(f"{len(found)} traces in {out}")


@demo_app.command("train-gate")
def demo_train_gate(
    out: Annotated[Path | None, typer.Option(help="Gate folder; demo/gate by default.")] = None,
    work: Annotated[Path, typer.Option(help="Where traces are kept.")] = Path("build/gate"),
) -> None:
    """Train the demo's gate from what the embedded target says (about 15 minutes)."""
    _need(("torch", "train"), *_SERVING)
    from hybridspec.demo.train_gate import train_demo_gate
    from hybridspec.gate.errors import GateError
    from hybridspec.loadtest.client import RequestFailed
    from hybridspec.loadtest.server import ServerFailed

    try:
        train_demo_gate(out, work, say=typer.echo)
    except (GateError, ServerFailed, RequestFailed) as error:
        _leave(str(error))


@traces_app.command("collect")
def traces_collect(
    url: Annotated[str, typer.Option(help="Address of a running server.")],
    out: Annotated[Path, typer.Option(help="Folder of the trace set to write.")],
    workload: Annotated[list[str], typer.Option(help="Bundled name, file or folder; repeatable.")],
    max_tokens: Annotated[int | None, typer.Option(help="Overrides the workload's limit.")] = None,
    streams: Streams = 8,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many prompts.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or name of the target's tokenizer, for a server not SGLang's."),
    ] = None,
) -> None:
    """Send prompts to a running server and keep prompt and output token ids."""
    _need(("httpx", "loadtest"), ("pyarrow", "loadtest"))
    from hybridspec.demo.collect import collect
    from hybridspec.gate.errors import GateError
    from hybridspec.gate_cli import load_tokenizer
    from hybridspec.loadtest.client import RequestFailed
    from hybridspec.loadtest.workloads import BadWorkload

    try:
        loaded = None if tokenizer is None else load_tokenizer(tokenizer)
        count = collect(
            url,
            workload,
            out,
            max_tokens=max_tokens,
            streams=streams,
            limit=limit,
            tokenizer=loaded,
        )
    except (BadWorkload, RequestFailed, GateError) as error:
        _leave(str(error))
    else:
        typer.echo(f"{count} traces in {out}")


@loadtest_app.command(
    "locust", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def loadtest_locust(context: typer.Context) -> None:
    """Run locust with hybridspec's locustfile; takes locust's options and those that it adds.

    For example: hybridspec loadtest locust --host http://127.0.0.1:30000 --headless -u 8 -t 60s
    --workload edit. All options: hybridspec loadtest locust -- --help
    """
    _need(("locust", "loadtest"))
    import os

    from hybridspec import loadtest

    file = Path(loadtest.__file__).with_name("locustfile.py")
    command = [sys.executable, "-m", "locust", "-f", str(file), *context.args]
    os.execv(sys.executable, command)


@loadtest_app.command("sweep")
def loadtest_sweep(
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Bundled name, file or folder; repeatable. The bundled three."),
    ] = None,
    users: Annotated[str, typer.Option(help="Concurrencies, separated by commas.")] = "1,4,16",
    rounds: Rounds = 3,
    out: Annotated[Path, typer.Option(help="Folder of the sweep; goes on where it was.")] = Path(
        "build/sweep"
    ),
    server: Annotated[
        list[str] | None,
        typer.Option(help="NAME=URL of a running server; repeatable. Otherwise starts the demo's."),
    ] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option(help="One of the demo's algorithms; repeatable. All.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Least prompts of a block.")] = 4,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Instead of the workload's own.")
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="Ask every prompt before; caches are empty otherwise.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Most seconds of a block.")] = 600.0,
    head: Annotated[Path | None, typer.Option(help="Another EAGLE3 head for the demo's.")] = None,
    gate: Annotated[Path | None, typer.Option(help="Another gate for the demo's.")] = None,
    seed: Annotated[int, typer.Option(help="Order of the prompts.")] = 0,
) -> None:
    """Measure servers x workloads x users with locust, in turn on the same prompts."""
    _need(("locust", "loadtest"), ("httpx", "loadtest"), ("plotly", "train"))
    from hybridspec.loadtest.client import RequestFailed
    from hybridspec.loadtest.server import ServerFailed
    from hybridspec.loadtest.sweep import SweepError
    from hybridspec.loadtest.workloads import BadWorkload
    from hybridspec.sweep_cli import run_sweep

    given = dict(each.partition("=")[::2] for each in server or [])
    if not all(given.values()):
        _leave(f"--server must be NAME=URL, got {server}")
    try:
        run_sweep(
            out,
            workloads=workload or ["edit", "tools", "chat"],
            users=_counts(users, "--users"),
            servers=given,
            algorithms=algorithm or [],
            rounds=rounds,
            prompts=prompts,
            max_tokens=max_tokens,
            warm=warm,
            timeout_s=timeout,
            head=head,
            gate=gate,
            seed=seed,
        )
    except (SweepError, ServerFailed, BadWorkload, RequestFailed) as error:
        _leave(str(error))
    except KeyboardInterrupt:
        _leave(f"stopped; the same command goes on with {out}")
    loadtest_report(out)


@loadtest_app.command("report")
def loadtest_report(
    out: Annotated[Path, typer.Argument(help="Folder of the sweep.")] = Path("build/sweep"),
    title: Annotated[str, typer.Option(help="Heading.")] = "HYBRID under load",
    html: Annotated[
        Path | None, typer.Option(help="Page to write; report.html in the folder by default.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to a file too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a sweep has found so far: tables, a page, JSON."""
    _need(("plotly", "train"))
    from hybridspec.loadtest.sweep import SweepError
    from hybridspec.sweep_cli import report

    try:
        report(out, title=title, html=html or out / "report.html", text=markdown, as_json=json)
    except SweepError as error:
        _leave(str(error))


def _counts(text: str, option: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        _leave(f"{option} must be whole numbers such as 1,8,32, got {text!r}")
    return counts


@app.command()
def simulate(
    traces: Annotated[list[Path], typer.Option(help="Trace set, or a folder of sets; repeatable.")],
    profile: Annotated[
        str,
        typer.Option(help="Step-time profile: h100, cpu, or a file that a server has kept."),
    ] = "h100",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8,32,128",
    gate: Annotated[
        Path | None, typer.Option(help="Gate folder; by default gates are trained on the spot.")
    ] = None,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Simulate goodput without each of its ideas too.")
    ] = False,
    model_steps: Annotated[int, typer.Option(min=1, help="Draft tokens of EAGLE3's chain.")] = 7,
    model_free: Annotated[
        int, typer.Option(min=0, help="Of them, those that need no forward of the draft head.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.")] = None,
) -> None:
    """Serve traces in simulated time and compare policies by workload and batch size."""
    _need(("torch", "train"), ("arctic_inference", "suffix"))
    from hybridspec.simulation_report import show

    sizes = _counts(batch, "--batch")
    from hybridspec.gate.errors import GateError

    try:
        show(
            traces,
            profile=profile,
            batches=sizes,
            gate=gate,
            ablations=ablations,
            model_steps=model_steps,
            model_free=model_free,
            as_json=json,
            html=html,
        )
    except GateError as error:
        _leave(str(error))


@app.command()
def doctor(
    gate: Annotated[Path | None, typer.Option(help="Gate folder to check.")] = None,
    head: Annotated[Path | None, typer.Option(help="EAGLE3 head to check.")] = None,
    target: Annotated[Path | None, typer.Option(help="Target model that the head is for.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this installation; exits with 1 if HYBRID would not start."""
    from hybridspec.adapters.sglang.doctor import run

    raise typer.Exit(run(gate=gate, head=head, target=target, as_json=json))


@app.command(
    "gpu-check", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def gpu_check(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Target, folder or hub id; the demo's by default.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Its EAGLE3 head.")] = None,
    gate: Annotated[Path | None, typer.Option(help="Its gate.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the target.")] = "bfloat16",
    streams: Annotated[
        str, typer.Option(help="Concurrencies, separated by commas.")
    ] = "1,8,32,128",
    prompts: Annotated[int, typer.Option(min=1, help="Compared with plain decoding.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 128,
    server: Annotated[
        list[str] | None, typer.Option(help="One of the servers to compare; repeatable. All.")
    ] = None,
    out: Out = Path("build/gpu-check.json"),
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON only.")] = False,
) -> None:
    """Prove HYBRID on this machine: it loads, is lossless, waits for nothing, and how fast it is.

    What follows ``--`` goes to every server, for example ``-- --tp-size 2``.
    """
    _need(*_SERVING)
    from hybridspec.demo.target import TargetError
    from hybridspec.gpu_check_cli import run_check

    try:
        passed = run_check(
            model=model,
            head=head,
            gate=gate,
            dtype=dtype,
            streams=_counts(streams, "--streams"),
            prompts=prompts,
            max_tokens=max_tokens,
            extra=context.args,
            servers=server or [],
            out=out,
            as_json=json,
        )
    except (TargetError, ValueError) as error:
        _leave(str(error))
    raise typer.Exit(0 if passed else 1)


def _mount_gate() -> None:
    # The gate's commands are typer's own tree, so they must be imported to be mounted. They are
    # asked for only when named, or the help of every other command would pay for NumPy.
    if "gate" in sys.argv[1:2]:
        from hybridspec.gate_cli import app as gate_app

        app.add_typer(gate_app, name="gate")
    else:
        app.command("gate", help="Train, evaluate, export and inspect gates.")(lambda: None)


_mount_gate()
