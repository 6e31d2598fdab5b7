"""The measured part of the demo: rounds of blocks, in which the algorithms take turns.

A block is one algorithm answering the prompts of one workload and round. All algorithms answer a
block's prompts before the next block begins, so a noisy machine hits them alike; the order rotates
from round to round. Every round has prompts of its own and starts with empty caches. This module
neither starts servers nor prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hybridspec.loadtest.client import Client, Run
from hybridspec.loadtest.rounds import pick, schedule
from hybridspec.loadtest.turns import Turns

TokenIds = Sequence[int]

# Answers are cut here: long enough for the drafts of a code edit to matter, short enough for three
# rounds of six algorithms in ten minutes on two cores.
MAX_TOKENS = 64
# Prompts of one block at one stream; with more streams a block has one prompt a stream.
BLOCK_PROMPTS = 2
# Warm-up is there for lazy initialisation and step-time estimates, not for filling caches.
WARM_UP_TOKENS = 24
WARM_UP = (
    "Repeat these words five times: red green blue yellow black white brown orange purple pink.",
    "Write two sentences about the sea.",
    "Count from one to forty in words.",
)


@dataclass(frozen=True, slots=True)
class Block:
    """One measurement: an algorithm on the prompts of one workload in one round."""

    round: int
    workload: str
    algorithm: str
    run: Run


def block_size(streams: int) -> int:
    """Prompts in a block: enough that every stream has one."""
    return max(BLOCK_PROMPTS, streams)


def warm_up(client: Client, streams: int) -> None:
    """Let a server answer a few prompts that are not measured."""
    prompts = [client.tokenize([{"role": "user", "content": text}]) for text in WARM_UP]
    batch = [prompts[index % len(prompts)] for index in range(max(len(prompts), streams))]
    client.run(batch, max_tokens=WARM_UP_TOKENS, streams=streams)


def measure(
    turns: Turns,
    prompts: Mapping[str, Sequence[TokenIds]],
    algorithms: Sequence[str],
    *,
    rounds: int,
    streams: int,
    done: Callable[[Block], None],
) -> list[Block]:
    """Run all rounds.

    Args:
        turns: servers by name of algorithm, started.
        prompts: token ids of every prompt, by workload.
        algorithms: who takes part.
        rounds: how many rounds.
        streams: requests in flight at a time.
        done: called after each block.

    Returns:
        All blocks, in the order in which they ran.
    """
    blocks = []
    for round_ in range(rounds):
        fresh = set(algorithms)
        for workload, name in schedule(
            list(prompts), algorithms, round_, by_algorithm=not turns.all_alive
        ):
            chosen = pick(prompts[workload], round_, block_size(streams))
            with turns.turn(name) as client:
                if name in fresh:
                    client.flush_cache()
                    fresh.remove(name)
                run = client.run(chosen, max_tokens=MAX_TOKENS, streams=streams)
            blocks.append(Block(round_, workload, name, run))
            done(blocks[-1])
    return blocks
