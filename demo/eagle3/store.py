"""The corpus on disk: token ids and target states of finished sequences, appended as they come.

Three files in one folder: ``tokens.bin`` (int32), ``states.bin`` (bfloat16) and ``index.jsonl``,
whose lines are written last, so that a killed writer loses at most the sequence it was writing.
Beside them, optionally, ``prior.npy``: float64 ``[vocab]`` token counts of plain text.

This module does not know what the states mean or how they are trained on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sequence:
    """Where one sequence lies and what it is.

    Attributes:
        index: number of its prompt in the corpus plan.
        kind: ``edit``, ``code``, ``tool``, ``doc`` or ``chat``.
        held_out: kept for evaluation, never trained on.
        prompt: prompt length in tokens.
        length: tokens in all; states exist for the first ``length - 1``.
        token_at: first token's number in ``tokens.bin``.
        state_at: first state's number in ``states.bin``.
        temperature: 0 when the answer is greedy.
    """

    index: int
    kind: str
    held_out: bool
    prompt: int
    length: int
    token_at: int
    state_at: int
    temperature: float


class CorpusWriter:
    """Appends sequences to a folder. One writer at a time."""

    def __init__(self, folder: Path, width: int) -> None:
        """Open or create ``folder``; ``width`` is the number of values of one state.

        Raises:
            ValueError: the folder holds states of another width.
        """
        folder.mkdir(parents=True, exist_ok=True)
        meta = folder / "meta.json"
        if meta.exists() and json.loads(meta.read_text())["width"] != width:
            raise ValueError(f"{folder} holds a corpus of another target; use an empty folder")
        meta.write_text(json.dumps({"width": width}))
        self.width = width
        self.known = {s.index for s in read_index(folder)}
        last = max(read_index(folder), key=lambda s: s.token_at, default=None)
        # Whatever a killed writer left after the last indexed sequence is cut off.
        self._tokens = _open_at(
            folder / "tokens.bin", 4 * (last.token_at + last.length if last else 0)
        )
        ends = 2 * width * (last.state_at + last.length - 1 if last else 0)
        self._states = _open_at(folder / "states.bin", ends)
        index = folder / "index.jsonl"
        if index.exists():
            whole = index.read_bytes().rfind(b"\n") + 1
            os.truncate(index, whole)
        self._index = index.open("a", encoding="utf-8")

    def add(
        self,
        tokens: Tensor,
        states: Tensor,
        *,
        index: int,
        kind: str,
        held_out: bool,
        prompt: int,
        temperature: float,
    ) -> None:
        """Append one sequence: int64 ``[n]`` tokens and bfloat16 ``[n - 1, width]`` states."""
        sequence = Sequence(
            index=index,
            kind=kind,
            held_out=held_out,
            prompt=prompt,
            length=len(tokens),
            token_at=self._tokens.tell() // 4,
            state_at=self._states.tell() // (2 * self.width),
            temperature=temperature,
        )
        self._tokens.write(tokens.numpy().astype(np.int32).tobytes())
        self._states.write(states.contiguous().view(torch.int16).numpy().tobytes())
        self._tokens.flush()
        self._states.flush()
        self._index.write(json.dumps(asdict(sequence)) + "\n")
        self._index.flush()
        self.known.add(index)

    def close(self) -> None:
        """Close the files."""
        for stream in (self._tokens, self._states, self._index):
            stream.close()


class CorpusReader:
    """Reads a corpus folder, also one still being written (as of the time it was opened)."""

    def __init__(self, folder: Path, keep: Callable[[Sequence], bool] = lambda s: True) -> None:
        """Map the files; only sequences for which ``keep`` is true are listed.

        Raises:
            FileNotFoundError: no corpus there.
        """
        self.width = int(json.loads((folder / "meta.json").read_text())["width"])
        self.sequences = [s for s in read_index(folder) if keep(s)]
        prior = folder / "prior.npy"
        self.prior = torch.from_numpy(np.load(prior)) if prior.exists() else None
        if self.sequences:
            self._tokens = np.memmap(folder / "tokens.bin", np.int32, "r")
            self._states = np.memmap(folder / "states.bin", np.int16, "r")

    def tokens(self, sequence: Sequence) -> Tensor:
        """int64 ``[length]``."""
        at = sequence.token_at
        return torch.from_numpy(self._tokens[at : at + sequence.length].astype(np.int64))

    def states(self, sequence: Sequence) -> Tensor:
        """bfloat16 ``[length - 1, width]``."""
        at, rows = sequence.state_at * self.width, sequence.length - 1
        flat = np.array(self._states[at : at + rows * self.width])
        return torch.from_numpy(flat).view(torch.bfloat16).view(rows, self.width)


def read_index(folder: Path) -> list[Sequence]:
    """The finished sequences of a corpus folder, in writing order; a cut last line is ignored."""
    path = folder / "index.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [Sequence(**json.loads(line)) for line in lines[:-1] if line]


def _open_at(path: Path, size: int):  # type: ignore[no-untyped-def]
    stream = path.open("r+b" if path.exists() else "w+b")
    stream.truncate(size)
    stream.seek(size)
    return stream
