"""Traces: served requests as token ids, in Parquet, with what happened in their decode steps.

A trace set is a folder of Parquet files, or one file: the life of one server, in order of arrival.
One row a request; the columns are the fields of :class:`Trace`, those of its :class:`Steps` with
the prefix ``step_``. Public traces are read as they are, see :func:`read_traces`. This module
neither replays nor interprets anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError

SCHEMA = "1"
_SCHEMA_KEY, _FEATURES_KEY = b"hybridspec_traces", b"hybridspec_features"
SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class Steps:
    """The decode steps of one request, as served; arrays of one entry a step, in order.

    Attributes:
        index: int64, number of the step in the server's life; equal in all rows of one batch.
        row: int32, the request's row in that batch.
        position: int32, output tokens before the step.
        source: int8, what was verified (values of ``Source``).
        width: int16, tokens verified per row, root token included.
        proposed: int16, draft tokens verified.
        accepted: int16, draft tokens accepted, bonus excluded.
        features: float32 ``[steps, features]``, NaN in steps without a cache draft; None if they
            were not logged.
    """

    index: NDArray[np.int64]
    row: NDArray[np.int32]
    position: NDArray[np.int32]
    source: NDArray[np.int8]
    width: NDArray[np.int16]
    proposed: NDArray[np.int16]
    accepted: NDArray[np.int16]
    features: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.index)


_STEP_TYPES: dict[str, type[np.generic]] = {
    "index": np.int64,
    "row": np.int32,
    "position": np.int32,
    "source": np.int8,
    "width": np.int16,
    "proposed": np.int16,
    "accepted": np.int16,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """One served request; ids are int32 ``[n]``.

    Attributes:
        id: the request's name.
        workload: what it belongs to; figures are given by workload.
        kind: of the request, free.
        prompt_ids: the prompt.
        output_ids: the output, the end token included where there was one.
        scope: requests of one scope (tenant, cache salt, adapter) share responses; None is one too.
        model: the target.
        finish: ``stop``, ``length``, ``abort`` or empty if unknown.
        steps: what happened in each decode step, where the server recorded it.
        model_accepted: int32 ``[outputs]``, where it is known: how many of EAGLE3's draft tokens
            would be accepted in a step that begins at each output position (bonus excluded).
    """

    id: str
    workload: str
    kind: str
    prompt_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    scope: str | None = None
    model: str = ""
    finish: str = ""
    steps: Steps | None = None
    model_accepted: NDArray[np.int32] | None = None


def write_traces(path: Path, traces: Iterable[Trace], features: Sequence[str] = ()) -> int:
    """Write one Parquet file, which appears complete or not at all; its size in bytes.

    Args:
        path: to make or replace.
        traces: in order of arrival.
        features: names of the columns of their logged features.

    Raises:
        GateError: pyarrow is absent.
        OSError: the disk is full or may not be written.
    """
    pyarrow, parquet = _arrow()
    columns: dict[str, list[Any]] = {name: [] for name in _schema(pyarrow).names}
    for trace in traces:
        for name in ("id", "workload", "kind", "prompt_ids", "output_ids"):
            columns[name].append(getattr(trace, name))
        for name in ("scope", "model", "finish", "model_accepted"):
            columns[name].append(getattr(trace, name))
        for name in _STEP_TYPES:
            columns[f"step_{name}"].append(getattr(trace.steps, name, None))
        logged = trace.steps.features if trace.steps is not None else None
        columns["step_features"].append(None if logged is None else logged.reshape(-1))
    notes = {_SCHEMA_KEY: SCHEMA.encode(), _FEATURES_KEY: json.dumps(list(features)).encode()}
    table = pyarrow.table(columns, schema=_schema(pyarrow)).replace_schema_metadata(notes)
    part = path.with_name(path.name + ".part")
    try:
        parquet.write_table(table, part, compression="zstd")
        size = part.stat().st_size
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return size


def trace_sets(paths: Sequence[Path]) -> list[Path]:
    """The trace sets that ``paths`` name: files, folders of Parquet files (one set each), and
    folders of those or of public ``.jsonl`` files (one set a file).

    Raises:
        GateError: nothing is there.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or any(path.glob(f"*{SUFFIX}")):
            found.append(path)
            continue
        found += sorted(each.parent for each in path.glob(f"*/*{SUFFIX}"))
        found += sorted(path.glob("*.jsonl"))
    if not found:
        raise GateError(f"traces: no {SUFFIX} or .jsonl file in {', '.join(map(str, paths))}")
    return list(dict.fromkeys(found))


def read_traces(path: Path) -> list[Trace]:
    """All traces of one set, in order of arrival.

    Reads this module's format, and the public acceptance traces of the SpecDecode-Bench simulator
    (arXiv 2601.11580; JSON lines with ``prompt_token_ids`` and ``generated_token_ids``), whose
    workload is taken from the file's name.

    Raises:
        GateError: the set is missing, empty, or not readable.
    """
    if path.suffix == ".jsonl":
        return _read_public(path)
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise GateError(f"traces: {path} holds no {SUFFIX} file")
    return [trace for file in files for trace in _read(file)]


def feature_names(path: Path) -> tuple[str, ...]:
    """Names of the logged features of a set; empty if none were logged.

    Raises:
        GateError: as :func:`read_traces`.
    """
    file = next(iter(sorted(path.glob(f"*{SUFFIX}"))), path) if path.is_dir() else path
    return tuple(json.loads(_table(file).schema.metadata.get(_FEATURES_KEY, b"[]")))


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise GateError(
            f"traces: pyarrow cannot be imported ({error}); pip install 'hybridspec[train]'"
        ) from None
    return pyarrow, parquet


def _schema(pyarrow: Any) -> Any:
    ids = pyarrow.list_(pyarrow.int32())
    columns = [(name, pyarrow.string()) for name in ("id", "workload", "kind")]
    columns += [("prompt_ids", ids), ("output_ids", ids)]
    columns += [(name, pyarrow.string()) for name in ("scope", "model", "finish")]
    for name, kind in _STEP_TYPES.items():
        columns.append((f"step_{name}", pyarrow.list_(pyarrow.from_numpy_dtype(kind))))
    columns.append(("model_accepted", ids))
    columns.append(("step_features", pyarrow.list_(pyarrow.float32())))
    return pyarrow.schema(columns)


def _table(path: Path) -> Any:
    pyarrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
    except OSError as error:
        raise GateError(f"traces: {path} cannot be read ({error.strerror or error})") from None
    except pyarrow.ArrowException as error:
        raise GateError(f"traces: {path} is no Parquet file ({error})") from None
    schema = (table.schema.metadata or {}).get(_SCHEMA_KEY, b"none").decode()
    if schema != SCHEMA:
        raise GateError(f"traces: {path} has schema {schema}, this version reads {SCHEMA}")
    return table


def _read(path: Path) -> Iterator[Trace]:
    table = _table(path)
    names = [field.name for field in fields(Trace) if field.name not in ("steps", "model_accepted")]
    for record in table.to_batches(max_chunksize=1024):
        columns = {name: record.column(name) for name in record.schema.names}
        for at in range(record.num_rows):
            values = {name: columns[name][at] for name in names}
            plain: dict[str, Any] = {
                name: _array(value, np.int32) if name.endswith("_ids") else value.as_py()
                for name, value in values.items()
            }
            known = columns["model_accepted"][at]
            plain["model_accepted"] = _array(known, np.int32) if known.is_valid else None
            yield Trace(**plain, steps=_steps(columns, at))


def _steps(columns: dict[str, Any], at: int) -> Steps | None:
    if not columns["step_index"][at].is_valid:
        return None
    arrays = {name: _array(columns[f"step_{name}"][at], kind) for name, kind in _STEP_TYPES.items()}
    logged = columns["step_features"][at]
    count = len(arrays["index"])
    features = None
    if logged.is_valid and count:
        features = _array(logged, np.float32).reshape(count, -1)
    return Steps(**arrays, features=features)


def _array(scalar: Any, kind: type[np.generic]) -> NDArray[Any]:
    values: NDArray[Any] = scalar.values.to_numpy(zero_copy_only=False).astype(kind)
    return values


def _read_public(path: Path) -> list[Trace]:
    try:
        with path.open() as file:
            return list(_parse_public(path, file))
    except OSError as error:
        raise GateError(f"traces: {path} cannot be read ({error.strerror})") from None


def _parse_public(path: Path, lines: Iterable[str]) -> Iterator[Trace]:
    workload = path.stem.removeprefix("combined_")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt, output = _ids(record["prompt_token_ids"]), _ids(record["generated_token_ids"])
            model = _public_lengths(record.get("acc_eagle"), len(output))
            yield Trace(str(record["id"]), workload, workload, prompt, output, model_accepted=model)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise GateError(f"traces: {path}, line {number}: {what}") from None


def _public_lengths(record: Any, outputs: int) -> NDArray[np.int32] | None:
    """EAGLE's lengths of the public traces, which count the bonus token and come from another run:
    of use only where that had as many tokens."""
    if not isinstance(record, dict) or len(record["acc_len"]) != outputs:
        return None
    left = outputs - np.arange(outputs)
    lengths: NDArray[np.int32] = np.minimum(_ids(record["acc_len"]), left) - 1
    return lengths.astype(np.int32)


def _ids(values: Any) -> NDArray[np.int32]:
    array = np.array(values, np.int32)
    if array.ndim != 1:
        raise ValueError("token ids must be a list of whole numbers")
    return array
