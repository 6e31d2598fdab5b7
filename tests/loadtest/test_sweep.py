"""A sweep: its order, its figures, and a real one with locust between two small HTTP servers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridspec.loadtest.server import Server
from hybridspec.loadtest.sweep import BLOCKS, Settings, Sweep, SweepError, read
from hybridspec.loadtest.sweep_figures import figures
from hybridspec.loadtest.sweep_markdown import markdown
from hybridspec.loadtest.sweep_page import write_page

SMALL = Path(__file__).parent / "http_server.py"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
SETTINGS = Settings(("plain", "eagle3", "hybrid"), ("edit", "chat"), (1, 4), rounds=2)


def test_algorithms_take_turns_on_the_same_prompts() -> None:
    blocks = SETTINGS.blocks()
    assert len(set(blocks)) == len(blocks) == 24
    cells = [(b.round, b.users, b.workload) for b in blocks]
    assert all(len(set(cells[at : at + 3])) == 1 for at in range(0, 24, 3))
    assert len({blocks[at].algorithm for at in range(0, 24, 3)}) == 3, "the first one rotates"
    alone = SETTINGS.blocks(by_algorithm=True)
    assert sorted(map(repr, alone)) == sorted(map(repr, blocks))
    assert len({b.algorithm for b in alone[:4]}) == 1


def line(
    round_: int, users: int, workload: str, algorithm: str, speed: float, **more: Any
) -> dict[str, Any]:
    server = None
    if algorithm == "hybrid":
        by_bin = [[10.0, 5.0, 4.0], *[[0.0, 0.0, 0.0]] * 5, [2.0, 40.0, 36.0]]
        server = {
            "accepted_length": 1.5,
            "row_share": {"none": 0.2, "cache": 0.3, "model": 0.5},
            "accepted_lengths": {"cache": [1.0] * 7, "model": [3.0, 1.0, 0, 0, 0, 0, 0]},
            "expected": {"cache": by_bin, "model": by_bin},
        }
    return {
        "round": round_,
        "users": users,
        "workload": workload,
        "algorithm": algorithm,
        "began": 100.0 * round_ + users,
        "tokens_per_s": speed,
        "ms": {"TPOT": {"p50": 1e3 / speed}, "TTFT": {"p50": 200.0}},
        "server": server,
        **more,
    }


def all_lines() -> list[dict[str, Any]]:
    speeds = {"plain": 20.0, "eagle3": 25.0, "hybrid": 30.0}
    return [
        line(b.round, b.users, b.workload, b.algorithm, speeds[b.algorithm] + b.round)
        for b in SETTINGS.blocks()
    ]


def header() -> dict[str, Any]:
    settings = {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__}
    return {"settings": settings, "facts": {"note": "Made up."}}


def test_ratios_are_taken_round_by_round() -> None:
    lines = all_lines()
    lines.append(line(0, 1, "edit", "eagle3", 60.0))  # that block was run again
    lines.append({**line(1, 4, "chat", "hybrid", 1.0), "failed": "the server is gone"})
    found = figures(header(), lines, ours="hybrid", base="plain")
    first, *_, last = found["cells"]
    assert first["best"] == "eagle3"
    assert first["against_best"] == pytest.approx((30 / 60 + 31 / 26) / 2, abs=1e-3)
    assert first["against_plain"] == pytest.approx((30 / 20 + 31 / 21) / 2, abs=1e-3)
    assert first["algorithms"]["eagle3"]["spread"] == [26.0, 60.0]
    assert last["algorithms"]["hybrid"]["rounds"] == 1
    assert found["summary"]["cells"] == 4
    assert found["summary"]["near_best"] == 0.75
    assert found["summary"]["geomean_against"]["plain"] == pytest.approx(1.5, abs=0.02)
    assert len(found["failed"]) == 1
    text = markdown(found, "Title")
    assert "| edit | 20.5 |" in text
    assert "round 2, 4 users, chat, hybrid: the server is gone" in text
    assert "Made up." in text


def test_another_sweep_is_not_continued(tmp_path: Path) -> None:
    Sweep(tmp_path, SETTINGS, {})
    assert len(Sweep(tmp_path, SETTINGS, {}).waiting) == 24
    with pytest.raises(SweepError, match="other settings"):
        Sweep(tmp_path, Settings(("plain",), ("edit",), (1,)), {})
    (tmp_path / BLOCKS).write_text("hello\n")
    with pytest.raises(SweepError, match="cannot be used"):
        read(tmp_path)
    with pytest.raises(SweepError, match="no sweep in"):
        read(tmp_path / "elsewhere")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.slow
def test_the_page_is_drawn_in_a_browser(tmp_path: Path) -> None:
    assert BROWSER is not None
    found = figures(header(), all_lines(), ours="hybrid", base="plain")
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    write_page(found, all_lines(), "What <was> measured.\n\nWhat came out.", "Under load", page)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000"]
    command += ["--enable-logging=stderr", "--window-size=1200,4000"]
    shown = subprocess.run(
        [*command, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert shown.stdout.count('class="main-svg"') >= 6
    assert "What &lt;was&gt; measured." in shown.stdout
    assert "Uncaught" not in shown.stderr
    for heading in ("Throughput", "Speed-up of hybrid", "Expected against accepted"):
        assert heading in shown.stdout
    # What plotly drew, not what the page's source says.
    drawn = shown.stdout.partition("<svg")[2]
    for word in ("tokens/s", "TPOT p50, ms", "over the best other", "8-15"):
        assert word in drawn
    subprocess.run(
        [*command, f"--screenshot={picture}", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert picture.stat().st_size > 30_000


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    made = [
        Server([], log_path=tmp_path / f"{name}.log", command=(sys.executable, str(SMALL)))
        for name in ("plain", "hybrid")
    ]
    for server in made:
        server.start()
        server.wait_ready()
    yield made
    for server in made:
        server.stop(grace_s=0)


def sweep_command(servers: list[Server], out: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "hybridspec", "loadtest", "sweep", "--out", str(out)]
    for name, server in zip(("plain", "hybrid"), servers, strict=True):
        command += ["--server", f"{name}={server.url}"]
    return [*command, "--workload", "edit", "--users", "1,2", "--prompts", "2", *options]


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_where_it_was(servers: list[Server], tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = sweep_command(servers, out, "--rounds", "1")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (out / BLOCKS).is_file() and len((out / BLOCKS).read_text().splitlines()) >= 2:
                break
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=60)
    assert first.returncode != 0
    assert "goes on" in said
    before = (out / BLOCKS).read_text()
    assert 2 <= len(before.splitlines()) < 5
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    after = (out / BLOCKS).read_text()
    assert after.startswith(before)
    _, lines = read(out)
    assert len(lines) == 4
    assert all(line["flushed"] and line["asked_each"] == 1.0 for line in lines)
    assert "min left" in done.stderr
    assert "| edit |" in done.stdout
    assert (out / "report.html").is_file()
    again = subprocess.run(
        [sys.executable, "-m", "hybridspec", "loadtest", "report", str(out), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(again.stdout)["summary"]["cells"] == 2


@pytest.mark.slow
def test_a_dying_server_is_reported_and_the_others_go_on(
    servers: list[Server], tmp_path: Path
) -> None:
    out = tmp_path / "sweep"
    servers[1].stop(grace_s=0)
    done = subprocess.run(
        sweep_command(servers, out, "--rounds", "1"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    header, lines = read(out)
    failed = [line for line in lines if "failed" in line]
    assert [line["algorithm"] for line in failed] == ["hybrid", "hybrid"]
    assert "Connection refused" in failed[0]["failed"] or "Max retries" in failed[0]["failed"]
    assert "## Failed blocks" in done.stdout
    found = figures(header, lines, ours="hybrid", base="plain")
    assert all(set(cell["algorithms"]) == {"plain"} for cell in found["cells"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--server", "nonsense"], "--server must be NAME=URL"),
        (["--users", "0"], "--users must be whole numbers"),
        (["--users", "999"], "need as many"),
        (["--workload", "poems"], "no workload 'poems'"),
        (["--algorithm", "magic"], "unknown algorithm 'magic'"),
    ],
)
def test_bad_requests_are_one_line(tmp_path: Path, options: list[str], line: str) -> None:
    command = [sys.executable, "-m", "hybridspec", "loadtest", "sweep", "--out", str(tmp_path)]
    if options[0] == "--users":
        options = [*options, "--server", "plain=http://127.0.0.1:9"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert line in done.stderr
    assert "Traceback" not in done.stderr
