"""Traces: served requests as token ids, one JSON object a line. Replays and interprets nothing.

Fields of a line: ``id``, ``workload``, ``kind``, ``prompt_ids``, ``output_ids`` and, optionally,
``scope`` (sharing scope). Lines stand in order of arrival.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError


@dataclass(frozen=True, slots=True)
class Trace:
    """One served request; ids are int32 ``[n]``."""

    id: str
    workload: str
    kind: str
    prompt_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    scope: str | None = None


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Write ``traces`` to ``path``, replacing it."""
    with path.open("w") as file:
        for trace in traces:
            line = {
                "id": trace.id,
                "workload": trace.workload,
                "kind": trace.kind,
                "prompt_ids": trace.prompt_ids.tolist(),
                "output_ids": trace.output_ids.tolist(),
            }
            if trace.scope is not None:
                line["scope"] = trace.scope
            file.write(json.dumps(line) + "\n")


def read_traces(path: Path) -> list[Trace]:
    """All traces of ``path``, in order of arrival.

    Reads this module's format, and the public acceptance traces of the SpecDecode-Bench simulator
    (arXiv 2601.11580: ``prompt_token_ids``, ``generated_token_ids``), whose workload is taken from
    the file's name.

    Raises:
        GateError: the file is missing, or a line is no trace.
    """
    try:
        with path.open() as file:
            return list(_parse(path, file))
    except OSError as error:
        raise GateError(f"traces: {path} cannot be read ({error.strerror})") from None


def _parse(path: Path, lines: Iterable[str]) -> Iterator[Trace]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _trace(path, json.loads(line))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise GateError(f"traces: {path}, line {number}: {what}") from None


def _trace(path: Path, record: dict[str, Any]) -> Trace:
    if "prompt_token_ids" in record:
        workload = path.stem.removeprefix("combined_")
        prompt, output = record["prompt_token_ids"], record["generated_token_ids"]
        return Trace(str(record["id"]), workload, workload, _ids(prompt), _ids(output))
    return Trace(
        id=str(record["id"]),
        workload=str(record["workload"]),
        kind=str(record["kind"]),
        prompt_ids=_ids(record["prompt_ids"]),
        output_ids=_ids(record["output_ids"]),
        scope=record.get("scope"),
    )


def _ids(values: Any) -> NDArray[np.int32]:
    array = np.array(values, np.int32)
    if array.ndim != 1:
        raise ValueError("token ids must be a list of whole numbers")
    return array
