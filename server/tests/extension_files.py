"""The files of the extension modules: whether they are what their sources say, and a package without them."""

import shutil
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "server/src/plainsql_server"
SOURCES = ("*.pyx", "*.pxd")
# What the name of a compiled module ends with, for the Python that runs.
SUFFIX = EXTENSION_SUFFIXES[0]


def is_stale(package: Path) -> bool:
    """Whether a source is newer than all that is compiled. What is compiled for other Pythons does not count."""
    compiled_s = [path.stat().st_mtime for path in package.rglob(f"*{SUFFIX}")]
    sources_s = [path.stat().st_mtime for pattern in SOURCES for path in package.rglob(pattern)]
    return bool(compiled_s) and max(sources_s) > max(compiled_s)


def copy_uncompiled(folder: Path) -> Path:
    """Makes a copy of the package without extension modules in a folder, which can be put first on Python's path."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so"))
    return copy
