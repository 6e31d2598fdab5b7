"""Starts one server after the other and looks: does it load, is its text plain decoding's, does it
wait for the device where it should not, how fast is it. Writes one JSON file to send back.

On a CPU the same steps run as a rehearsal; what needs a GPU is then named as not run.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridspec.loadtest.client import Answer, Client, RequestFailed
from hybridspec.loadtest.gpu_check.contestants import CONTESTANTS, server_args
from hybridspec.loadtest.gpu_check.near_ties import Known, compare, known
from hybridspec.loadtest.gpu_check.syncs import count, decode_trace, wait_for_trace
from hybridspec.loadtest.server import Server, ServerFailed
from hybridspec.loadtest.workloads import load

WORKLOADS = ("edit", "tools", "chat")
# Few: traces of many operators are large, and PyTorch once crashed while it freed one.
PROFILED_STEPS = 8
_TRACE_TIMEOUT_S = 180.0
_GRAPHS = re.compile(r"hybridspec: (width \d+: graphs .*)")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is checked.

    Attributes:
        model: folder or hub id of the target.
        head: of the EAGLE3 head.
        gate: folder of the gate, if there is one.
        dtype: of the target.
        streams: concurrencies whose speed is measured.
        prompts: how many are compared with plain decoding.
        max_tokens: most tokens of an answer.
        extra: arguments for every server.
        out: folder for logs and traces.
        on_gpu: whether this machine has a GPU that torch can use.
        servers: names of :data:`CONTESTANTS`, plain decoding among them.
    """

    model: str
    head: str
    gate: Path | None
    dtype: str
    streams: tuple[int, ...]
    prompts: int
    max_tokens: int
    extra: tuple[str, ...]
    out: Path
    on_gpu: bool
    servers: tuple[str, ...] = tuple(CONTESTANTS)


def check(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the check; ``say`` is told what happens.

    Returns:
        ``servers`` by name, each with ``ok``, and ``failed`` (why it did not start) or ``graphs``,
        ``text`` (answers by :func:`near_ties.compare`), ``waits`` a step and ``tokens_per_s`` by
        streams; and ``ok``: every server that was run started, and said what plain decoding says.
    """
    found: dict[str, dict[str, Any]] = {}
    prompts: list[list[int]] = []
    plain: list[Known] = []
    for name in plan.servers:
        contestant = CONTESTANTS[name]
        if contestant.needs_gpu and not plan.on_gpu:
            found[name] = {"ok": True, "not_run": "there is no GPU"}
            continue
        if contestant.needs_gpu and "gate" in name and plan.gate is None:
            found[name] = {"ok": True, "not_run": "no gate was given"}
            continue
        say(f"{name}: starting")
        args = server_args(
            contestant,
            model=plan.model,
            head=plan.head,
            gate=plan.gate,
            dtype=plan.dtype,
            folder=plan.out,
            extra=plan.extra,
        )
        log = plan.out / f"{name.replace(', ', '-').replace(' ', '-')}.log"
        try:
            with Server(args, log_path=log) as server:
                if not prompts:
                    prompts = _prompts(server, plan.prompts)
                    plain = [known(answer) for answer in _answers(server, prompts, plan)]
                found[name] = _look(server, log.stem, plan, prompts, plain, say)
        except (ServerFailed, RequestFailed) as error:
            found[name] = {"ok": False, "failed": str(error)}
            say(f"{name}: {error}")
            if name == "plain":
                break
    return {"ok": all(each["ok"] for each in found.values()), "servers": found}


def _look(
    server: Server,
    label: str,
    plan: Plan,
    prompts: list[list[int]],
    plain: list[Known],
    say: Callable[[str], None],
) -> dict[str, Any]:
    answers = _answers(server, prompts, plan)
    texts = [compare(mine, answer.output_ids) for mine, answer in zip(plain, answers, strict=True)]
    text = {kind: texts.count(kind) for kind in ("same", "near tie", "different")}
    speeds = {str(streams): _speed(server, prompts, plan, streams) for streams in plan.streams}
    try:  # last, so that a profiler that takes the server down costs nothing else
        waits = _waits(server, plan, prompts, plan.out / f"{label}-trace")
    except RequestFailed as error:
        waits = None
        say(f"{label}: no trace ({error})")
    say(
        f"{label}: {text['same']} of {len(texts)} answers the same, {text['near tie']} near ties, "
        f"{text['different']} different; tokens/s "
        + ", ".join(f"{speed:.0f} at {streams}" for streams, speed in speeds.items())
    )
    return {
        "ok": text["different"] == 0,
        "text": text,
        "tokens_per_s": speeds,
        "waits": waits,
        "graphs": _GRAPHS.findall(server.log_text()),
    }


def _prompts(server: Server, most: int) -> list[list[int]]:
    """Token ids of the bundled workloads' prompts, in turn."""
    with Client(server.url) as client:
        sets = [[client.tokenize(each.messages) for each in load(name)] for name in WORKLOADS]
    mixed = [prompt for row in zip(*sets, strict=False) for prompt in row]
    return (mixed * (most // len(mixed) + 1))[:most]


def _answers(server: Server, prompts: list[list[int]], plan: Plan) -> list[Answer]:
    """Answers with two top log-probabilities, eight at a time."""
    options = {"return_logprob": True, "top_logprobs_num": 2}
    with Client(server.url) as client:
        run = client.run(prompts, max_tokens=plan.max_tokens, streams=8, options=options)
    return run.answers


def _speed(server: Server, prompts: list[list[int]], plan: Plan, streams: int) -> float:
    """Output tokens a second of ``streams`` at a time, after one round that is not counted."""
    chosen = (prompts * (2 * streams // len(prompts) + 1))[: max(2 * streams, 4)]
    with Client(server.url) as client:
        client.run(chosen[:streams], max_tokens=8, streams=streams)
        client.flush_cache()
        return client.run(chosen, max_tokens=plan.max_tokens, streams=streams).tokens_per_s


def _waits(
    server: Server, plan: Plan, prompts: list[list[int]], folder: Path
) -> dict[str, float] | None:
    """Waits for the device a decode step; None if the server gave no trace."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Client(server.url) as client:
        client.start_profile(
            {
                "output_dir": str(folder),
                "num_steps": PROFILED_STEPS,
                "activities": ["CPU", "GPU"] if plan.on_gpu else ["CPU"],
                "profile_by_stage": True,
                # Python's stacks are not read, and make traces large.
                "with_stack": False,
            }
        )
        for _ in range(8):
            client.run(prompts[:4], max_tokens=PROFILED_STEPS * 4, streams=4)
            if decode_trace(folder) is not None:
                break
    trace = wait_for_trace(folder, _TRACE_TIMEOUT_S)
    return None if trace is None else count(trace, PROFILED_STEPS)


def table(found: dict[str, Any], streams: Sequence[int]) -> list[tuple[str, ...]]:
    """Rows to print: server, text, waits a step, and tokens/s with the ratio to plain."""
    base = found["servers"].get("plain", {}).get("tokens_per_s", {})
    rows = []
    for name, each in found["servers"].items():
        if "text" not in each:
            rows.append((name, each.get("not_run") or each["failed"], "", *[""] * len(streams)))
            continue
        text = ", ".join(f"{number} {kind}" for kind, number in each["text"].items() if number)
        waits = "no trace" if each["waits"] is None else f"{sum(each['waits'].values()):.1f}"
        speeds = [
            f"{each['tokens_per_s'][str(count)]:.0f} "
            f"({each['tokens_per_s'][str(count)] / base[str(count)]:.2f}x)"
            for count in streams
        ]
        rows.append((name, text, waits, *speeds))
    return rows


def write(found: dict[str, Any], path: Path) -> None:
    """Write the file to send back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
