"""The HTTP client against a small real HTTP server with set delays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_server import SECONDS_PER_REQUEST

from hybridspec.loadtest.client import Client, RequestFailed
from hybridspec.loadtest.server import Server

COMMAND = (sys.executable, str(Path(__file__).parent / "http_server.py"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("client") / "server.log"
    with Server([], log_path=log, command=COMMAND) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as each:
        yield each


def test_generate_with_text_and_with_ids(client: Client) -> None:
    for prompt in ("ab", [97, 98]):
        answer = client.generate(prompt, max_tokens=4)
        assert answer.output_ids == [97] * 4
        assert (answer.prompt_tokens, answer.completion_tokens) == (2, 4)
        assert (answer.verify_steps, answer.accepted) == (2, 5)
        assert answer.finish_reason == "length"
        assert answer.latency_s >= SECONDS_PER_REQUEST


def test_chat(client: Client) -> None:
    answer = client.chat([{"role": "user", "content": "hi"}], max_tokens=4)
    assert (answer.text, answer.finish_reason) == ("hello", "stop")


def test_run_keeps_order_and_counts(client: Client) -> None:
    run = client.run([[1], [2], [3]], max_tokens=[1, 2, 3], streams=2)
    assert [answer.output_ids for answer in run.answers] == [[1], [2, 2], [3, 3, 3]]
    assert run.completion_tokens == 6
    assert run.tokens_per_s == pytest.approx(6 / run.wall_s)
    assert run.accepted_length == 2.5


def test_streams_bound_what_is_in_flight(tmp_path: Path) -> None:
    with Server([], log_path=tmp_path / "log", command=COMMAND) as fresh, Client(fresh.url) as own:
        one = own.run([[1]] * 4, max_tokens=1)
        assert own.server_info()["most_running"] == 1
        own.run([[1]] * 12, max_tokens=1, streams=4)
        # A busy machine may not get all four under way at once, but never a fifth.
        assert 2 <= own.server_info()["most_running"] <= 4
    assert one.wall_s >= 4 * SECONDS_PER_REQUEST


def test_a_refused_request_is_one_line(client: Client) -> None:
    with pytest.raises(RequestFailed, match=r"/generate: the server answered 400: .*token 0"):
        client.run([[1], [0]], max_tokens=1, streams=2)


def test_no_server_is_one_line() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(RequestFailed, match="no answer"):
        client.generate("a", max_tokens=1)


def test_flush(client: Client) -> None:
    before = client.server_info()["flushed"]
    client.flush_cache()
    assert client.server_info()["flushed"] == before + 1
