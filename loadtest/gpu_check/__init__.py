"""One command that proves on the user's GPU what a CPU cannot: see :mod:`.run`."""
