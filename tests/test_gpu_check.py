"""The GPU check: what counts as the same text, what counts as a wait, and a rehearsal on a CPU."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hybridspec.loadtest.client import Answer
from hybridspec.loadtest.gpu_check.contestants import CONTESTANTS, server_args
from hybridspec.loadtest.gpu_check.near_ties import Known, compare, known
from hybridspec.loadtest.gpu_check.run import table
from hybridspec.loadtest.gpu_check.syncs import count, wait_for_trace


def test_a_near_tie_is_told_from_a_wrong_token() -> None:
    plain = known(
        Answer(
            text="",
            output_ids=[5, 6, 7],
            prompt_tokens=1,
            completion_tokens=3,
            latency_s=1.0,
            finish_reason="length",
            meta={
                "output_top_logprobs": [
                    [[-0.1, 5, None], [-3.0, 9, None]],
                    [[-0.7, 6, None], [-0.8, 8, None]],
                    [[-0.1, 7, None], [-4.0, 1, None]],
                ]
            },
        )
    )
    assert plain.best == [(5, 9), (6, 8), (7, 1)]
    assert compare(plain, [5, 6, 7]) == "same"
    assert compare(plain, [5, 8, 3]) == "near tie"
    assert compare(plain, [5, 3, 7]) == "different"  # neither of the two best
    assert compare(plain, [9, 6, 7]) == "different"  # no tie there
    assert compare(plain, [5, 6]) == "different"
    assert compare(plain, [5, 6, 7, 7]) == "different"
    assert compare(Known([], [], []), []) == "same"


def test_waits_are_counted_per_step(tmp_path: Path) -> None:
    assert wait_for_trace(tmp_path, timeout_s=0.1) is None
    events = [
        {"ph": "X", "name": "cudaStreamSynchronize"},
        {"ph": "X", "name": "cudaStreamSynchronize"},
        {"ph": "X", "name": "aten::mm"},
        {"ph": "M", "name": "cudaDeviceSynchronize"},
    ]
    with gzip.open(tmp_path / "1-TP-0-EXTEND.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events * 9}, file)
    assert wait_for_trace(tmp_path, timeout_s=0.1) is None  # prefills are not what is looked at
    trace = tmp_path / "1-TP-0-DECODE.trace.json.gz"
    with gzip.open(trace, "wt") as file:
        json.dump({"traceEvents": events}, file)
    assert wait_for_trace(tmp_path, timeout_s=5) == trace
    assert count(trace, steps=4) == {"cudaStreamSynchronize": 0.5}


def test_servers_differ_only_in_what_is_compared(tmp_path: Path) -> None:
    def args(name: str) -> list[str]:
        return server_args(
            CONTESTANTS[name],
            model="m",
            head="h",
            gate=tmp_path / "gate",
            dtype="bfloat16",
            folder=tmp_path,
            extra=["--tp-size", "2"],
        )

    assert args("plain")[-2:] == ["--tp-size", "2"]
    assert "--speculative-draft-model-path" not in args("ngram")
    config = args("hybrid, overlap off")
    path = Path(config[config.index("--hybrid-config") + 1])
    assert json.loads(path.read_text()) == {"overlap": "never"}
    assert "--hybrid-config" not in args("hybrid")


def test_the_table_has_a_row_for_every_server() -> None:
    seen = {"ok": True, "text": {"same": 3, "near tie": 1, "different": 0}, "waits": None}
    found = {
        "servers": {
            "plain": {**seen, "tokens_per_s": {"1": 20.0}},
            "hybrid": {**seen, "tokens_per_s": {"1": 30.0}, "waits": {"cudaEventSynchronize": 1.5}},
            "eagle3": {"ok": False, "failed": "no head"},
        }
    }
    assert table(found, [1]) == [
        ("plain", "3 same, 1 near tie", "no trace", "20 (1.00x)"),
        ("hybrid", "3 same, 1 near tie", "1.5", "30 (1.50x)"),
        ("eagle3", "no head", "", ""),
    ]


@pytest.mark.engine
def test_rehearsal_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    command = [sys.executable, "-m", "hybridspec", "gpu-check", "--json", "--out", str(out)]
    command += ["--dtype", "float32", "--streams", "1,4", "--prompts", "6", "--max-tokens", "32"]
    command += ["--server", "hybrid, overlap on", "--server", "hybrid, gate on cuda"]
    command += ["--", "--max-total-tokens", "8192", "--max-running-requests", "8"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert json.loads(ran.stdout) == found
    assert found["machine"]["gpus"] == []
    servers = found["servers"]
    assert servers["hybrid, gate on cuda"]["not_run"] == "there is no GPU"
    for name in ("plain", "hybrid, overlap on"):
        assert servers[name]["text"] == {"same": 6, "near tie": 0, "different": 0}
        assert set(servers[name]["tokens_per_s"]) == {"1", "4"}
        assert servers[name]["waits"] is not None
