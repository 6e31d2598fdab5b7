"""SGLang's arguments of the algorithms that servers are compared by. Knows no model and no gate."""

from __future__ import annotations

HYBRID = ("--speculative-algorithm", "HYBRID")
# Eight tokens a step, as in the measurements that the project's goals refer to.
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")


def eagle3(steps: int) -> tuple[str, ...]:
    """Arguments of SGLang's own EAGLE3 with chains of ``steps`` draft tokens."""
    return (
        *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1)),
    )
