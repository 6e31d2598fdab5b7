"""Where hybridspec keeps what can be made again: the embedded target, measured step times."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$HYBRIDSPEC_CACHE``, else ``hybridspec`` under ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("HYBRIDSPEC_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "hybridspec"


def step_times_folder() -> Path:
    """Measured step times, one file for each machine, model, dtype and SGLang version."""
    return cache_folder() / "step-times"
