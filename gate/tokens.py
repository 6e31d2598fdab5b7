"""Per-vocabulary token flags, looked up by id. Knows no tokenizer: it is given strings."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError

FLAGS = ("whitespace", "newline", "punctuation", "bracket", "delimiter", "digit", "identifier")

_BRACKETS = frozenset("()[]{}<>")
_DELIMITERS = frozenset("\"'`,;:|")
_PUNCTUATION = frozenset(string.punctuation)


def _flags_of(text: str) -> tuple[bool, ...]:
    characters = frozenset(text)
    core = text.strip()
    return (
        bool(text) and not core,
        "\n" in characters,
        bool(core) and _PUNCTUATION.issuperset(core),
        not _BRACKETS.isdisjoint(characters),
        not _DELIMITERS.isdisjoint(characters),
        core.isdigit(),
        core.isidentifier(),
    )


class TokenTable:
    """uint8 flags ``[vocab + 1, len(FLAGS)]``; the last row is all zero, for ids outside."""

    def __init__(self, flags: NDArray[np.uint8]) -> None:
        """Take ``flags`` (uint8 ``[vocab, len(FLAGS)]``, 0 or 1).

        Raises:
            GateError: another shape or type.
        """
        if flags.ndim != 2 or flags.shape[1] != len(FLAGS) or flags.dtype != np.uint8:
            raise GateError(
                f"token table: expected uint8 [vocab, {len(FLAGS)}], got {flags.dtype} "
                f"{list(flags.shape)}; build it again from the tokenizer"
            )
        # One byte a flag in one word a token: adding words adds all flags at once.
        lanes = np.zeros((len(flags) + 1, 8), np.uint8)
        lanes[:-1, : len(FLAGS)] = flags
        self._words = lanes.view(np.uint64).ravel()

    @property
    def vocab(self) -> int:
        """Number of ids with flags of their own."""
        return len(self._words) - 1

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> TokenTable:
        """Build from the text of every token, in id order."""
        rows = [_flags_of(text) for text in strings]
        return cls(np.array(rows, np.uint8).reshape(len(rows), len(FLAGS)))

    @classmethod
    def from_decoder(cls, decode: Callable[[int], str], vocab: int) -> TokenTable:
        """Build by decoding every id in ``range(vocab)``."""
        return cls.from_strings(decode(token) for token in range(vocab))

    def lookup(self, token_ids: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Flags of ``token_ids`` (any shape): uint8 ``[..., len(FLAGS)]``. -1 and ids past the
        vocabulary have none."""
        return self.flags_of(self.words(token_ids))

    def words(self, token_ids: NDArray[np.integer]) -> NDArray[np.uint64]:
        """Flags of ``token_ids`` (any shape), one byte each in one word: up to 255 of them can be
        added before :meth:`flags_of` takes them apart."""
        # -1 takes the last word, which is empty.
        try:
            words: NDArray[np.uint64] = self._words.take(token_ids)
        except IndexError:
            words = self._words.take(np.minimum(token_ids, self.vocab))
        return words

    @staticmethod
    def flags_of(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """uint8 ``[..., len(FLAGS)]`` of words of any shape."""
        flags: NDArray[np.uint8] = words[..., None].view(np.uint8)
        return flags[..., : len(FLAGS)]

    def save(self, path: Path) -> None:
        """Write as ``.npz``."""
        np.savez_compressed(path, flags=self.flags_of(self._words[:-1]))

    @classmethod
    def load(cls, path: Path) -> TokenTable:
        """Read what :meth:`save` wrote.

        Raises:
            GateError: the file is missing or is no token table.
        """
        try:
            with path.open("rb") as file, np.load(file) as archive:
                return cls(archive["flags"])
        except FileNotFoundError:
            raise GateError(f"token table: no file at {path}") from None
        except (OSError, KeyError, EOFError, ValueError, BadZipFile) as error:
            if isinstance(error, GateError):
                raise
            raise GateError(f"token table: {path} cannot be read ({error})") from None
