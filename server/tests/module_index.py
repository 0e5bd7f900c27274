"""Generates docs/modules.md: every module of the server and the client with the first paragraph of its docstring.

    python -m server.tests.module_index

A test checks that the page matches the source.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/modules.md"
SOURCES = ("server/src/plainsql_server", "client/src/plainsql")

_INTRODUCTION = """\
# Modules

What each module does, in its own words. [ARCHITECTURE.md](../ARCHITECTURE.md) shows how they work together.
`make reference` generates this page from the docstrings; edit those, not this page.
"""
# Its files say in their names what they change.
_LEFT_OUT = re.compile(r"/migrations/|/__pycache__/")
_DOCSTRING = re.compile(r'^"""(.*?)"""', re.MULTILINE | re.DOTALL)


def index() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for source in SOURCES:
        for folder in sorted({file.parent for file in _files(ROOT / source)}):
            yield f"## {folder.relative_to(ROOT)}\n"
            for file in sorted(_files(folder, deep=False)):
                if summary := _summary(file):
                    yield f"- `{file.name}`: {summary}"
            yield ""


def _files(folder: Path, *, deep: bool = True) -> list[Path]:
    found = [file for file in (folder.rglob if deep else folder.glob)("*") if file.suffix in (".py", ".pyx")]
    return [file for file in found if not _LEFT_OUT.search(file.as_posix())]


def _summary(file: Path) -> str:
    """The first paragraph of the module's docstring, on one line; '' if it has none."""
    text = file.read_text()
    if file.suffix == ".py":
        docstring = ast.get_docstring(ast.parse(text)) or ""
    else:
        found = _DOCSTRING.search(text)
        docstring = found.group(1) if found else ""
    return " ".join(docstring.partition("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(index())
