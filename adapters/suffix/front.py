"""The compiled front of the suffix trees: built once, then one call a step for all rows.

``front.cc`` is compiled together with the tree that arctic-inference installs as source, so both
ways to draft run the same code. ctypes lets go of the interpreter lock during its calls.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridspec.adapters.base import Drafts
from hybridspec.adapters.cache_folder import cache_folder
from hybridspec.adapters.suffix.trees import Growth, Limits, LookUp

_FRONT = Path(__file__).with_name("front.cc")
_OPTIONS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden")
_LIBRARY_SOURCES = ("suffix_tree.cc", "suffix_tree.h", "int32_map.h")
_MOST_SECONDS = 300


class FrontUnavailable(Exception):
    """It cannot be built or loaded; one line says why."""


class _Limits(ctypes.Structure):
    _fields_ = (
        ("most", ctypes.c_int),
        ("factor", ctypes.c_float),
        ("least_probability", ctypes.c_float),
    )


_COLUMNS = ("tokens", "probs", "length", "score", "match_length", "shared")


class _Drafts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in _COLUMNS)


class _CompiledTree:
    """A tree of the compiled front; freed with this object."""

    __slots__ = ("_front", "handle")

    def __init__(self, front: Any, depth: int) -> None:
        self.handle = 0
        self._front = front
        self.handle = front.tree_new(depth) or 0
        if not self.handle:
            raise MemoryError("no memory for a suffix tree")

    def __del__(self) -> None:
        self._front.tree_free(self.handle)

    def extend(self, sequence: int, tokens: NDArray[np.int32]) -> None:
        if not self._front.tree_extend(self.handle, sequence, tokens.ctypes.data, len(tokens)):
            raise RuntimeError("the suffix tree could not be extended")

    def remove(self, sequence: int) -> None:
        if not self._front.tree_remove(self.handle, sequence):
            raise RuntimeError("the suffix tree could not forget a sequence")


class CompiledTrees:
    """All rows in one call, off the interpreter lock."""

    name = "compiled"

    def __init__(self) -> None:
        """Load the front, compiling it first if nobody has.

        Raises:
            FrontUnavailable: one line, says why.
        """
        self._front = _load(built())

    def tree(self, depth: int) -> _CompiledTree:
        return _CompiledTree(self._front, depth)

    def grow(self, rows: Sequence[Growth]) -> None:
        trees: Any = rows  # all are this class's
        growths = np.array(
            [
                growth
                for own, shared, sequence, context, number in trees
                for place in (context.place(number),)
                for growth in ((own.handle, 0, *place), (shared.handle, sequence, *place))
            ],
            np.int64,
        )
        if not self._front.grow(growths.ctypes.data, len(growths)):
            raise RuntimeError("the suffix trees could not be extended")

    def draft(self, rows: Sequence[LookUp], into: Drafts, most: int, limits: Limits) -> None:
        trees: Any = rows  # all are this class's
        places = np.array(
            [
                (
                    *(own.handle, sequence),
                    *(0 if shared is None else shared.handle, shared_sequence),
                    *context.place(limits.depth),
                )
                for own, sequence, shared, shared_sequence, context in trees
            ],
            np.int64,
        )
        done = self._front.draft(
            places.ctypes.data,
            len(rows),
            _Limits(most, limits.factor, limits.least_probability),
            into.tokens.shape[1],
            _Drafts(*(getattr(into, name).ctypes.data for name in _COLUMNS)),
        )
        if not done:
            raise RuntimeError("the compiled suffix look-up failed")


def built() -> Path:
    """The compiled front for these sources, this compiler and this kind of machine.

    Raises:
        FrontUnavailable: one line, says why.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    sources = _library_sources()
    digest = hashlib.sha256(" ".join((*compiler, *_OPTIONS, platform.machine())).encode())
    for path in (_FRONT, *(sources / name for name in _LIBRARY_SOURCES)):
        digest.update(path.read_bytes())
    target = cache_folder() / "suffix-front" / f"{digest.hexdigest()[:16]}.so"
    if not target.exists():
        _compile(compiler, sources, target)
    return target


def _library_sources() -> Path:
    spec = importlib.util.find_spec("arctic_inference")
    for root in spec.submodule_search_locations or () if spec is not None else ():
        folder = Path(root) / "csrc" / "suffix_decoding"
        if all((folder / name).exists() for name in _LIBRARY_SOURCES):
            return folder
    raise FrontUnavailable("this arctic-inference was installed without its sources")


def _compile(compiler: list[str], sources: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Other ranks and servers may build the same at the same time: each renames its own.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            subprocess.run(
                [
                    *compiler,
                    *_OPTIONS,
                    f"-I{sources}",
                    "-o",
                    made,
                    _FRONT,
                    sources / "suffix_tree.cc",
                ],
                check=True,
                capture_output=True,
                text=True,
                timeout=_MOST_SECONDS,
            )
            made.replace(target)
    except FileNotFoundError:
        raise FrontUnavailable(f"there is no C++ compiler {compiler[0]}") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        raise FrontUnavailable(f"{compiler[0]} failed: {said[0] if said else error}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FrontUnavailable(str(error)) from None


def _load(path: Path) -> Any:
    try:
        front = ctypes.CDLL(str(path))
    except OSError as error:
        raise FrontUnavailable(str(error)) from None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("tree_new", pointer, (ctypes.c_int,)),
        ("tree_free", None, (pointer,)),
        ("tree_extend", ctypes.c_bool, (pointer, ctypes.c_int, pointer, number)),
        ("tree_remove", ctypes.c_bool, (pointer, ctypes.c_int)),
        ("grow", ctypes.c_bool, (pointer, number)),
        ("draft", ctypes.c_bool, (pointer, number, _Limits, ctypes.c_int, _Drafts)),
    ):
        function = getattr(front, name)
        function.restype, function.argtypes = result, arguments
    return front
