"""``python -m hybridspec``: the ``hybridspec`` command."""

from hybridspec.cli import app

app()
