"""Locust load test of any OpenAI-compatible streaming server.

    locust -f <this file> --host http://127.0.0.1:30000 --headless -u 8 -t 60s --workload edit

Closed loop by default: every user sends its next request when the last answer is complete. With
``--qps`` the loop is open: requests arrive at that rate, answers or not. Runs headless, with
locust's web page, and on several processes or machines. ``hybridspec loadtest locust`` starts it.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import requests
from gevent.pool import Group
from locust import HttpUser, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import WORKER_REPORT_INTERVAL, MasterRunner, WorkerRunner

from hybridspec.loadtest.arrivals import ARRIVALS, gaps
from hybridspec.loadtest.server_metrics import Counters, between
from hybridspec.loadtest.stream import StreamedAnswer, StreamError
from hybridspec.loadtest.workloads import BadWorkload, Request, load

KEY = "OPENAI_API_KEY"
CONNECT_S = 10.0


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Our options, beside locust's own: what is asked, and how it arrives."""
    parser.add_argument(
        "--workload", default="chat", help="bundled name, JSON-lines file or folder"
    )
    parser.add_argument("--api", default="chat", choices=["chat", "completions"])
    parser.add_argument(
        "--model", default="", help="name to ask for; by default the server's first"
    )
    parser.add_argument("--max-tokens", type=int, default=0, help="instead of the workload's own")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="order of the prompts, and arrivals")
    parser.add_argument("--once", action="store_true", help="stop when every prompt was asked once")
    parser.add_argument("--qps", type=float, default=0.0, help="arrivals a second: an open loop")
    parser.add_argument("--arrival", default="poisson", choices=list(ARRIVALS))
    parser.add_argument("--request-timeout", type=float, default=600.0, help="seconds")
    parser.add_argument(
        "--api-key",
        default="",
        help=f"for servers that need one; by default ${KEY}",
        is_secret=True,
    )
    parser.add_argument("--summary", default="", help="write this run's figures as JSON to a file")


class Run:
    """What the users of one process share: the prompts that are left, and the server's counters."""

    def __init__(self, environment: Environment) -> None:
        options = environment.parsed_options
        prompts = load(options.workload, seed=options.seed)
        self.distinct = len(prompts)
        self.worker: int = getattr(environment.runner, "worker_index", 0) or 0
        order = itertools.chain(prompts[self.worker :], prompts[: self.worker])
        self._next: Iterator[Request] = order if options.once else itertools.cycle(order)
        self.model: str = options.model
        key = options.api_key or os.environ.get(KEY, "")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.before: Counters | None = None
        self.began = self.seconds = 0.0
        self.first_sent = self.last_done = 0.0
        self.users = 0

    def next_prompt(self) -> Request:
        """The next prompt.

        Raises:
            StopUser: with ``--once``, when there is none.
        """
        prompt = next(self._next, None)
        if prompt is None:
            raise StopUser
        return prompt

    def counters(self, host: str) -> Counters | None:
        """The server's counters; None if it shows none."""
        try:
            reply = requests.get(f"{host}/metrics", headers=self.headers, timeout=CONNECT_S)
        except requests.RequestException:
            return None
        return Counters(reply.text) if reply.ok else None


@events.init.add_listener
def prepare(environment: Environment, **_: Any) -> None:
    """Read the workload before anything is sent."""
    options = environment.parsed_options
    try:
        environment.hybridspec = Run(environment)
    except BadWorkload as error:
        raise SystemExit(f"hybridspec: {error}") from None
    spread = isinstance(environment.runner, MasterRunner | WorkerRunner)
    if options.once and spread:
        raise SystemExit("hybridspec: --once needs a single process: every worker would ask all")


@events.test_start.add_listener
def begin(environment: Environment, **_: Any) -> None:
    """Note the server's counters."""
    run: Run = environment.hybridspec
    run.began = time.time()
    if not isinstance(environment.runner, WorkerRunner):
        run.before = run.counters(environment.host or "")


class OpenAIUser(HttpUser):
    """One user, or with ``--qps`` one source of arrivals."""

    def on_start(self) -> None:
        """Ask for the model's name, once per process."""
        options = self.environment.parsed_options
        self.state: Run = self.environment.hybridspec
        self.state.users += 1
        self.open = Group()
        self.arrivals: Iterator[float] | None = None
        if options.qps > 0:
            # Poisson streams of all users add up to one of the whole rate.
            rate = options.qps / max(1, options.num_users or 1)
            # Each has its own, and the same in every run.
            own = 1000 * self.state.worker + self.state.users
            self.arrivals = gaps(options.arrival, rate, options.seed + own)
        if not self.state.model:
            self.state.model = self._first_model()

    def _first_model(self) -> str:
        try:
            reply = self.client.get(
                "/v1/models", headers=self.state.headers, name="/v1/models", timeout=CONNECT_S
            )
            return str(reply.json()["data"][0]["id"]) if reply.ok else ""
        except (requests.RequestException, LookupError, ValueError):
            return ""  # the requests that follow say what is wrong

    @task
    def ask(self) -> None:
        """One request; in an open loop it is left to itself while the next one is awaited."""
        if self.arrivals is None:
            self.measure(self.state.next_prompt())
            return
        time.sleep(next(self.arrivals))
        self.open.spawn(self.measure, self.state.next_prompt())

    def on_stop(self) -> None:
        """Wait for open requests; with ``--once`` the last user ends the run."""
        self.open.join()
        self.state.users -= 1
        if self.environment.parsed_options.once and not self.state.users:
            gevent.spawn(self.environment.runner.quit)

    def measure(self, prompt: Request) -> None:
        """Send one request, read its stream, and enter its figures as locust statistics."""
        options = self.environment.parsed_options
        path, body = _body(prompt, options, self.state.model)
        answer = StreamedAnswer(started=time.perf_counter())
        failure: Exception | None = None
        try:
            # Not locust's client: its response time would end with the headers.
            with requests.post(
                f"{self.host}{path}",
                json=body,
                headers=self.state.headers,
                stream=True,
                timeout=(CONNECT_S, options.request_timeout),
            ) as reply:
                if not reply.ok:
                    raise StreamError(f"HTTP {reply.status_code}: {reply.text[:200]}")
                for data in reply.iter_content(chunk_size=None):
                    answer.feed(data, time.perf_counter())
            answer.check()
        except (requests.RequestException, StreamError) as error:
            failure = error
        now = time.perf_counter()
        self.state.first_sent = self.state.first_sent or answer.started
        self.state.last_done = now
        taken = now - answer.started
        self._enter("E2E", prompt, taken, answer.output_tokens or 0, failure)
        if failure is None and answer.arrivals:
            self._enter("TTFT", prompt, answer.ttft)
            if answer.tpot is not None:
                self._enter("TPOT", prompt, answer.tpot)
            for gap in answer.gaps:
                self._enter("gap", prompt, gap)

    def _enter(
        self,
        kind: str,
        prompt: Request,
        seconds: float,
        tokens: int = 0,
        failure: Exception | None = None,
    ) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=prompt.workload,
            response_time=seconds * 1e3,
            response_length=tokens,  # of E2E: output tokens
            exception=failure,
            context={},
        )


def _body(prompt: Request, options: Any, model: str) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": options.max_tokens or prompt.max_tokens,
        "temperature": options.temperature,
    }
    if options.api == "chat":
        return "/v1/chat/completions", {**body, "messages": list(prompt.messages)}
    text = "\n\n".join(message["content"] for message in prompt.messages)
    return "/v1/completions", {**body, "prompt": text}


@events.test_stop.add_listener
def note_end(environment: Environment, **_: Any) -> None:
    """The run is over; with the web page, which stays, its figures are shown as soon as workers
    have sent their last ones."""
    environment.hybridspec.seconds = time.time() - environment.hybridspec.began
    if environment.web_ui is not None:
        spread = isinstance(environment.runner, MasterRunner)
        gevent.spawn_later(2 * WORKER_REPORT_INTERVAL if spread else 0, conclude, environment)


@events.quitting.add_listener
def end(environment: Environment, **_: Any) -> None:
    """Without the web page, the figures are shown at the end, when workers have sent all of
    theirs. The exit code is 1 on any failure, and where nothing was measured."""
    if isinstance(environment.runner, WorkerRunner):
        return
    if isinstance(environment.runner, MasterRunner):
        environment.runner.quit()  # waits for the workers' last figures
    if environment.web_ui is None:
        conclude(environment)
    whole = [entry for (_, kind), entry in environment.stats.entries.items() if kind == "E2E"]
    answered = sum(entry.num_requests - entry.num_failures for entry in whole)
    if environment.stats.total.num_failures or not answered:
        environment.process_exit_code = 1


def conclude(environment: Environment) -> None:
    """Show what locust's own tables cannot: tokens a second, repeats, and the server's side."""
    figures = summarise(environment)
    print(_lines(figures))
    if path := environment.parsed_options.summary:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def summarise(environment: Environment) -> dict[str, Any]:
    """Figures of the run, times in milliseconds."""
    run: Run = environment.hybridspec
    options = environment.parsed_options
    # Starting and stopping users is not the server's time; a master sees no request, though.
    seconds = run.last_done - run.first_sent or run.seconds
    kinds: dict[str, dict[str, float]] = {}
    tokens = requests_done = failures = 0
    for (_, kind), entry in environment.stats.entries.items():
        if kind == "E2E":
            tokens += entry.total_content_length
            requests_done += entry.num_requests
            failures += entry.num_failures
        if kind in ("E2E", "TTFT", "TPOT", "gap") and entry.num_requests:
            kinds[kind] = {
                "mean": round(entry.avg_response_time, 3),
                **{
                    f"p{share:.0%}".rstrip("%"): entry.get_response_time_percentile(share)
                    for share in (0.5, 0.9, 0.95, 0.99)
                },
            }
    after = run.counters(environment.host or "")
    return {
        "workload": options.workload,
        "users": options.num_users or 1,
        "qps": options.qps or None,
        "seconds": round(seconds, 2),
        "requests": requests_done,
        "failures": failures,
        "distinct_prompts": run.distinct,
        "asked_each": round(requests_done / run.distinct, 2),
        "output_tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 2) if seconds > 0 else 0.0,
        "ms": kinds,
        "server": between(run.before, after) if run.before and after else None,
    }


def _lines(figures: dict[str, Any]) -> str:
    lines = [
        f"{figures['requests']} requests, {figures['failures']} failed, {figures['output_tokens']} "
        f"tokens in {figures['seconds']:.1f} s: {figures['tokens_per_s']:.1f} tokens/s",
        f"{figures['distinct_prompts']} distinct prompts, each asked {figures['asked_each']} times"
        + (" (repeats flatter every cache)" if figures["asked_each"] > 1 else ""),
    ]
    for kind, seen in figures["ms"].items():
        cells = ", ".join(f"{name} {value:.1f}" for name, value in seen.items())
        lines.append(f"{kind} ms: {cells}")
    if server := figures["server"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in server["row_share"].items())
        lines.append(
            f"server: {server['accepted_length']:.2f} accepted draft tokens a step and request "
            f"(bonus excluded); rows by draft: {shares}"
        )
    return "\n".join(lines)
