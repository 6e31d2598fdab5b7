"""A finished folder records the size and sha256 of its files, and is checked against the record.

This module knows nothing about models: it hashes files, writes one JSON file, and compares.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

MANIFEST_NAME = "hybridspec-manifest.json"
SCHEMA = 1
_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path, source: dict[str, str]) -> None:
    """Record every file of ``folder`` (not its sub-folders) and where the folder came from."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }
    record = {"schema": SCHEMA, "source": source, "files": files}
    (folder / MANIFEST_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def check_manifest(folder: Path, source: dict[str, str]) -> str | None:
    """Compare a folder with its record.

    Sizes are compared first, so a truncated file is found without reading the others.

    Returns:
        ``None`` when every recorded file is there with its recorded bytes and the folder was made
        from ``source``; otherwise one line saying what differs.
    """
    path = folder / MANIFEST_NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        schema, made_from, files = record["schema"], record["source"], dict(record["files"])
        expected = {name: (int(e["size"]), str(e["sha256"])) for name, e in files.items()}
    except FileNotFoundError:
        return f"{path.name} is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path.name} cannot be read"
    if schema != SCHEMA or made_from != source:
        return "it was built by another version"
    for name, (size, _) in expected.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, {size} expected"
    for name, (_, digest) in expected.items():
        if sha256_of(folder / name) != digest:
            return f"{name} has changed"
    return None
