"""min-p on the target's distribution under verification."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hybridspec.adapters.sglang import min_p

PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05]).expand(2, 3, 4)


def test_unlikely_tokens_go_and_the_rest_is_renormalised() -> None:
    kept = min_p.keep_likely(PROBS, torch.tensor([0.4, 0.0]))
    assert torch.allclose(kept[0], torch.tensor([0.625, 0.375, 0.0, 0.0]).expand(3, 4))
    assert torch.allclose(kept[1], PROBS[1])


def test_only_a_batch_that_asks_for_it_is_changed() -> None:
    def original(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen: torch.Tensor = kwargs["target_probs"]
        return seen

    asks = SimpleNamespace(min_ps=torch.tensor([0.4, 0.0]), need_min_p_sampling=True)
    with min_p.during(asks):
        assert float(min_p.verify(original, target_probs=PROBS)[0, 0, 3]) == 0.0
    with min_p.during(SimpleNamespace(min_ps=None, need_min_p_sampling=False)):
        assert min_p.verify(original, target_probs=PROBS) is PROBS
    assert min_p.verify(original, target_probs=PROBS) is PROBS
