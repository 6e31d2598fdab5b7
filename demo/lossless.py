"""The demo's check that drafts change the speed and never the text.

The measured answers themselves are compared first. Where kernels round differently in batches of
different shapes, two tokens that are equally likely in bfloat16 can change places; then a few
prompts are asked again in float32. The full check, of every policy, is in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridspec.demo.lineup import ALGORITHMS, Assets, server_args
from hybridspec.demo.measure import Block, TokenIds
from hybridspec.loadtest.turns import Turns, servers_that_fit

HYBRID = ("cache", "threshold", "hybrid")
"""The algorithms of the demo that are ours to vouch for."""
PROMPTS_PER_WORKLOAD = 2
MAX_TOKENS = 48


def compare_measured(blocks: Sequence[Block], dtype: str) -> dict[str, Any] | None:
    """Compare the measured token ids of HYBRID's algorithms with plain decoding's.

    Returns:
        As :func:`check_lossless`; None if any answer differs, which proves nothing yet, or if none
        of HYBRID's algorithms ran.
    """
    plain = {(b.workload, b.round): b.run.answers for b in blocks if b.algorithm == "plain"}
    ours = [block for block in blocks if block.algorithm in HYBRID]
    pairs = [
        (mine.output_ids, his.output_ids)
        for block in ours
        for mine, his in zip(block.run.answers, plain[block.workload, block.round], strict=True)
    ]
    if not pairs or any(mine != his for mine, his in pairs):
        return None
    return {
        "lossless": True,
        "algorithm": ", ".join(dict.fromkeys(block.algorithm for block in ours)),
        "dtype": dtype,
        "prompts": len(pairs),
        "tokens": sum(len(ids) for ids, _ in pairs),
        "different": 0,
    }


def check_lossless(
    algorithm: str, assets: Assets, prompts: Mapping[str, Sequence[TokenIds]], log_dir: Path
) -> dict[str, Any]:
    """Compare an algorithm's greedy token ids with plain decoding's, in float32.

    Returns:
        ``{"lossless", "algorithm", "dtype", "prompts", "tokens", "different"}``; ``different``
        counts prompts whose token ids differ anywhere.

    Raises:
        ServerFailed: a server did not start.
    """
    chosen = [ids for each in prompts.values() for ids in each[:PROMPTS_PER_WORKLOAD]]
    names = ("plain", algorithm)
    args = {
        name: server_args(ALGORITHMS[name], assets, dtype="float32", streams=len(chosen))
        for name in names
    }
    answers = {}
    with Turns(args, log_dir / "float32", most_alive=min(2, servers_that_fit())) as turns:
        for name in names:
            with turns.turn(name) as client:
                run = client.run(chosen, max_tokens=MAX_TOKENS, streams=len(chosen))
            answers[name] = [answer.output_ids for answer in run.answers]
    pairs = zip(answers["plain"], answers[algorithm], strict=True)
    different = sum(plain != other for plain, other in pairs)
    return {
        "lossless": different == 0,
        "algorithm": algorithm,
        "dtype": "float32",
        "prompts": len(chosen),
        "tokens": sum(len(ids) for ids in answers["plain"]),
        "different": different,
    }
