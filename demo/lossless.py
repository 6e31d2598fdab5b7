"""The demo's check that drafts change the speed and never the text.

Token ids are compared in float32: in bfloat16 two tokens can be equally likely to the last bit, and
then the shape of a batch, which every draft changes, decides between them. A short check; the full
one, of every policy, is in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridspec.demo.lineup import ALGORITHMS, Assets, server_args
from hybridspec.demo.measure import TokenIds
from hybridspec.demo.turns import Turns, servers_that_fit

PROMPTS_PER_WORKLOAD = 2
MAX_TOKENS = 48


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
