"""Text that any machine with this Python has, to ask the target about.

Standard library source (PSF licence), the common licence texts and package documents that Debian
systems carry (each under its package's own licence; absent elsewhere). Nothing is stored in this
repository: it is read where it lies, in a fixed order.

This module does not know prompts or models.
"""

from __future__ import annotations

import ast
import gzip
import inspect
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Characters. A 135M model loses longer code, and a longer prompt costs more than it teaches.
FUNCTION_CHARS = (140, 1000)
PASSAGE_CHARS = (350, 1300)
_SKIP = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the standard library: its name, argument names and dedented source."""

    name: str
    arguments: tuple[str, ...]
    source: str
    documented: bool


@cache
def stdlib_functions() -> tuple[Function, ...]:
    """Functions and methods of moderate length, in path order."""
    return tuple(f for path in _stdlib_files() for f in _functions(path))


@cache
def stdlib_passages() -> tuple[str, ...]:
    """Docstrings long enough to ask questions about, in path order."""
    found: list[str] = []
    for path in _stdlib_files():
        tree = _parse(path)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = inspect.cleandoc(ast.get_docstring(node) or "")
                if PASSAGE_CHARS[0] <= len(text) <= PASSAGE_CHARS[1]:
                    found.append(text)
    return tuple(found)


def debian_passages() -> list[str]:
    """Paragraph groups of /usr/share/common-licenses and /usr/share/doc; empty where absent."""
    paths = sorted(Path("/usr/share/common-licenses").glob("*"))
    paths += sorted(
        p
        for p in Path("/usr/share/doc").glob("*/*")
        if p.name.upper().startswith(("README", "NEWS", "FAQ", "TODO", "BUGS"))
    )
    found: list[str] = []
    for path in paths:
        if path.is_file() and not path.is_symlink():
            found += list(_passages(_read(path)))[:6]
    return found


def _passages(text: str) -> Iterator[str]:
    held = ""
    for paragraph in text.split("\n\n"):
        if len(held) + len(paragraph) > PASSAGE_CHARS[1]:
            if len(held) >= PASSAGE_CHARS[0]:
                yield held.strip("\n")
            held = ""
        held += paragraph + "\n\n"


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [*root.glob("*.py"), *root.glob("*/*.py")]
    return sorted(p for p in files if not _SKIP & set(p.relative_to(root).parts))


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _functions(path: Path) -> Iterator[Function]:
    tree = _parse(path)
    if tree is None:
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if FUNCTION_CHARS[0] <= len(source) <= FUNCTION_CHARS[1]:
            names = tuple(a.arg for a in node.args.args if a.arg not in ("self", "cls"))
            yield Function(node.name, names, source, ast.get_docstring(node) is not None)
