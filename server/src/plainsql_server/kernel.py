"""The compiled kernel: replaces the modules of a query's hot path with versions compiled by mypyc.

The compiled modules are in a separate folder, so Python never imports one without this check: they are used only if
they were built from the current sources. If one source has changed, none of them is used, because compiled modules
depend on each other's internals. `make kernel` builds them, and every wheel contains them. The uncompiled code does the
same, only more slowly.
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
# mypyc puts the code of all modules here; the other files only load it.
SHARED_MODULE = "plainsql_server__mypyc"

_STALE = (
    "plainsql-server: not using the compiled kernel, because the sources have changed. Rebuild it: `make kernel`.\n"
)


class KernelState(StrEnum):
    """Whether the compiled hot path is in use. `plainsql-server --version` and the metrics show it."""

    COMPILED = "compiled"
    NOT_COMPILED = "not compiled"
    STALE = "not compiled, because the sources have changed"


class KernelFinder(MetaPathFinder):
    """Finds the compiled modules before Python finds their sources."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # required by the protocol
        target: ModuleType | None = None,  # noqa: ARG002  # likewise
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def use_kernel() -> KernelState:
    """Uses the compiled kernel if it exists and matches its sources. Returns which code is in use."""
    files = kernel_files(FOLDER, PACKAGE)
    if files is None:
        sys.stderr.write(_STALE)
        return KernelState.STALE
    if not files:
        return KernelState.NOT_COMPILED
    sys.meta_path.insert(0, KernelFinder(files))
    return KernelState.COMPILED


def kernel_files(folder: Path, package: Path) -> dict[str, Path] | None:
    """The compiled files by module name; empty if nothing is compiled, None if a source has changed since."""
    manifest = folder / MANIFEST
    suffix = EXTENSION_SUFFIXES[0]
    if not (folder / f"{SHARED_MODULE}{suffix}").exists() or not manifest.exists():
        return {}
    digests: dict[str, str] = json.loads(manifest.read_bytes())
    if any(digest != digest_of(package / source) for source, digest in digests.items()):
        return None
    # Declarations of Cython are sources, too, but no modules.
    modules = [source for source in digests if not source.endswith(".pxd")]
    names = {source: ".".join((package.name, *Path(source).with_suffix("").parts)) for source in modules}
    files = {name: (folder / package.name / source).with_suffix(suffix) for source, name in names.items()}
    return {SHARED_MODULE: folder / f"{SHARED_MODULE}{suffix}", **files}


def digest_of(source: Path) -> str:
    """The digest of a source file; '' if it does not exist."""
    return hashlib.sha256(source.read_bytes()).hexdigest() if source.exists() else ""
