"""Nothing grows: memory, step time, suffix trees and metric series under unique prompts.

Three minutes in the suite, thirty under ``make soak`` (``SOAK_MINUTES``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine_servers import EngineServers
from soak import change, soak

pytestmark = pytest.mark.engine

MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))
BUDGET_MB = 2
MOST_MEMORY, MOST_STEP = 0.03, 0.05


def test_memory_and_step_time_stay_flat(engine: EngineServers, tmp_path: Path) -> None:
    # A budget that is full after a minute, so that eviction is what is watched.
    config = tmp_path / "hybrid.json"
    config.write_text(json.dumps({"suffix_budget_mb": BUDGET_MB}))
    server = engine("goodput", "--hybrid-config", str(config))
    looks = soak(server, MINUTES)
    assert len(looks) >= 6
    memory, step = (
        change([float(getattr(look, name)) for look in looks]) for name in ("resident", "step")
    )
    print(f"after the warm-up: memory {memory:+.1%}, time of a step {step:+.1%}")
    assert memory < MOST_MEMORY
    # Other work on the machine moves three minutes' steps by more than the limit.
    assert step < (MOST_STEP if MINUTES >= 30 else 4 * MOST_STEP)
    assert 0.5 * BUDGET_MB < looks[-1].suffix_bytes / 2**20 <= BUDGET_MB
    assert looks[-1].series <= looks[len(looks) // 3].series + 5
    assert "leak" not in server.log_text()
