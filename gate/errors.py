"""What the gate refuses. One line each: what is wrong and what to do."""

from __future__ import annotations


class GateError(ValueError):
    """A gate, trace or policy setting that cannot be used. The message is one clear line."""
