"""The compiled kernel: the modules of a query's hot path, compiled by mypyc, in the place of their sources.

Owns the finding of compiled modules and the proof that they were made from the sources beside them. They are
in a folder of their own, so that Python alone never prefers one: a source that was changed since is used as
it is, and with it all the others, because compiled modules know each other's insides. `make kernel` builds
them, and every wheel has them. The same code runs uncompiled, only slower.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent
FOLDER = PACKAGE / "_kernel"
MANIFEST = "manifest.json"
# Where mypyc puts the code of all of them; the others are doors to it.
SHARED_MODULE = "plainsql_server__mypyc"

_STALE = "plainsql-server: the compiled kernel was made from other sources and is not used; `make kernel` builds it.\n"


class State(StrEnum):
    """Which form of the hot path runs; `plainsql-server --version` and the metrics say it."""

    COMPILED = "compiled"
    NOT_COMPILED = "not compiled"
    STALE = "not compiled, because the kernel is of other sources"


class KernelFinder(MetaPathFinder):
    """Finds the compiled modules before their sources are found."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # Python's protocol names it
        target: ModuleType | None = None,  # noqa: ARG002  # likewise
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def use_kernel() -> State:
    """Puts the kernel in the place of its sources, if there is one and it is theirs. Says what runs from now on."""
    files = kernel_files(FOLDER, PACKAGE)
    if files is None:
        sys.stderr.write(_STALE)
        return State.STALE
    if not files:
        return State.NOT_COMPILED
    sys.meta_path.insert(0, KernelFinder(files))
    return State.COMPILED


def kernel_files(folder: Path, package: Path) -> dict[str, Path] | None:
    """The compiled files by module name; empty where nothing is compiled, None where a source has changed since."""
    manifest = folder / MANIFEST
    suffix = EXTENSION_SUFFIXES[0]
    if not (folder / f"{SHARED_MODULE}{suffix}").exists() or not manifest.exists():
        return {}
    digests: dict[str, str] = json.loads(manifest.read_bytes())
    if any(digest != digest_of(package / source) for source, digest in digests.items()):
        return None
    names = {source: ".".join((package.name, *Path(source).with_suffix("").parts)) for source in digests}
    files = {name: (folder / package.name / source).with_suffix(suffix) for source, name in names.items()}
    return {SHARED_MODULE: folder / f"{SHARED_MODULE}{suffix}", **files}


def digest_of(source: Path) -> str:
    """What a source is recognised by; '' if it is gone."""
    return hashlib.sha256(source.read_bytes()).hexdigest() if source.exists() else ""
