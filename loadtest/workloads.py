"""Workloads: JSON-lines files of prompts, the bundled ones by name and the user's by path.

One record a line: ``{"id", "workload", "kind", "messages": [{"role", "content"}], "max_tokens"}``;
``max_tokens`` may be left out, other fields are ignored.
This module does not tokenize and does not send anything.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUNDLED = Path(__file__).resolve().parent / "workloads"
ROLES = ("system", "user", "assistant")
# Where a record has no limit of its own: what the bundled workloads use.
DEFAULT_MAX_TOKENS = 128


class BadWorkload(ValueError):
    """A workload that cannot be used. The message is one line: where, what, and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt of a workload.

    Attributes:
        id: unique within the workload.
        workload: name of the workload, for grouping results.
        kind: what sort of text is asked for, for example ``edit``, ``tools`` or ``chat``.
        messages: the conversation, the last message being the user's.
        max_tokens: most tokens to generate.
    """

    id: str
    workload: str
    kind: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int


def bundled_names() -> list[str]:
    """Names of the workloads that come with the package, sorted."""
    return sorted(path.stem for path in BUNDLED.glob("*.jsonl"))


def load(source: str | Path, *, seed: int | None = None) -> list[Request]:
    """Load a workload by bundled name, or from a JSON-lines file, or a folder of such files.

    Args:
        source: bundled name or path. A name wins over a path of the same spelling.
        seed: shuffle with this seed; None keeps the order of the file.

    Raises:
        BadWorkload: unknown name, unreadable file, or a record that misses or misspells a field.
    """
    requests = [request for path in _files(source) for request in _read(path)]
    if not requests:
        raise BadWorkload(f"{source}: no prompts in it; give at least one record")
    seen: set[tuple[str, str]] = set()
    for request in requests:
        if (key := (request.workload, request.id)) in seen:
            raise BadWorkload(f"{source}: id {request.id!r} occurs twice; ids must be unique")
        seen.add(key)
    if seed is not None:
        random.Random(seed).shuffle(requests)
    return requests


def _files(source: str | Path) -> list[Path]:
    bundled = BUNDLED / f"{source}.jsonl"
    if isinstance(source, str) and "/" not in source and bundled.is_file():
        return [bundled]
    path = Path(source).expanduser()
    if path.is_dir():
        return sorted(path.glob("*.jsonl"))
    if path.is_file():
        return [path]
    names = ", ".join(bundled_names())
    raise BadWorkload(f"no workload {str(source)!r}: give a file, a folder or one of {names}")


def _read(path: Path) -> Iterator[Request]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadWorkload(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _parse(json.loads(line))
            except (json.JSONDecodeError, BadWorkload) as error:
                raise BadWorkload(f"{path}:{number}: {error}") from error


def _parse(record: Any) -> Request:
    if not isinstance(record, dict):
        raise BadWorkload("a record must be a JSON object")
    for name in ("id", "workload", "kind"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise BadWorkload(f"field {name!r} must be a non-empty string")
    limit = record.get("max_tokens", DEFAULT_MAX_TOKENS)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadWorkload("field 'max_tokens' must be a positive integer")
    return Request(
        id=record["id"],
        workload=record["workload"],
        kind=record["kind"],
        messages=_messages(record.get("messages")),
        max_tokens=limit,
    )


def _messages(value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise BadWorkload("field 'messages' must be a non-empty list")
    for message in value:
        good = isinstance(message, dict) and message.get("role") in ROLES
        if not good or not isinstance(message.get("content"), str):
            roles = ", ".join(ROLES)
            raise BadWorkload(f"each message needs a 'role' ({roles}) and a text 'content'")
    if value[-1]["role"] != "user":
        raise BadWorkload("the last message must be the user's")
    return tuple({"role": m["role"], "content": m["content"]} for m in value)
