"""Compiles the modules of a query's hot path. `make kernel` runs it, and so does the build of a wheel.

    python server/build_kernel.py [FOLDER]    # without FOLDER, in place

Owns the list of modules. A module is in it because a measurement said so; see docs/decisions/0007. mypyc compiles
what also runs uncompiled; what it cannot compile stays out: msgspec's models, exceptions with class attributes,
uvicorn's subclass. Cython compiles the one module that reads libpq's memory, which `engine/encoding/rows.py` does
without where there is no kernel.
"""

import json
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from mypyc.build import mypycify
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

SOURCES = Path(__file__).resolve().parent / "src"
PACKAGE = "plainsql_server"
MODULES = (
    "core/clock", "core/ids", "core/result", "core/sql_text", "data_plane/admission", "data_plane/classification",
    "data_plane/databases", "data_plane/head_start",
    "data_plane/job", "data_plane/query", "directory/cache", "directory/principals", "directory/tally",
    "engine/connection/connection", "engine/connection/exchange", "engine/connection/prepared",
    "engine/encoding/parameters", "engine/encoding/rows", "engine/execution/execution",
    "engine/execution/read_stream", "engine/pool/admission_queue", "engine/pool/pool", "engine/pool/pools",
    "http/app/application",
    "http/app/authentication", "http/app/rate_limit", "http/app/routes", "http/data/query", "http/server/channel",
    "http/server/request_head", "http/server/requests", "http/server/responses", "http/server/sink", "limits/account",
    "limits/permits", "limits/tiers", "limits/window", "logs", "metrics",
)  # fmt: skip
# By Cython: what reads libpq's memory, and the fast lane.
CYTHON_MODULES = (
    "engine/encoding/row_writer", "lane/answer", "lane/buffer", "lane/caller", "lane/exchange", "lane/frame",
    "lane/known_head", "lane/lane", "lane/libpq", "lane/plan", "lane/report", "lane/track",
)  # fmt: skip
# Declarations that several Cython modules share are part of what these are built from.
DECLARATIONS = (*(f"{module}.pxd" for module in CYTHON_MODULES), "lane/clocks.pxd")
FILES = (*(f"{module}.py" for module in MODULES), *(f"{module}.pyx" for module in CYTHON_MODULES))


def build_kernel(folder: Path) -> None:
    """Builds the kernel into a folder, in the place of what is there."""
    from plainsql_server.kernel import MANIFEST, digest_of  # noqa: PLC0415  # see sys.path below

    # The package must not be imported from what is being built, nor may a half-built kernel ever be found.
    shutil.rmtree(folder, ignore_errors=True)
    # Before the compiler reads them: a source that is changed meanwhile makes a kernel that is put aside.
    digests = {file: digest_of(SOURCES / PACKAGE / file) for file in (*FILES, *DECLARATIONS)}
    with tempfile.TemporaryDirectory() as build_folder:
        _compile(Path(build_folder))
        shutil.copytree(Path(build_folder) / "built", folder)
    (folder / MANIFEST).write_text(json.dumps(digests, indent=2) + "\n")


def what_is_missing() -> str | None:
    """What this machine lacks to compile anything; None if nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"a C compiler ({compiler})"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return None if headers.exists() else f"Python's headers ({headers})"


def _compile(build_folder: Path) -> None:
    was_in = Path.cwd()
    # Both compilers name modules by their paths from here.
    os.chdir(SOURCES)
    try:
        command = build_ext(
            Distribution({"name": PACKAGE, "ext_modules": [*_by_mypyc(build_folder), *_by_cython(build_folder)]})
        )
        command.build_lib, command.build_temp = str(build_folder / "built"), str(build_folder / "objects")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(was_in)


def _by_mypyc(build_folder: Path) -> list[Any]:
    paths = [f"{PACKAGE}/{module}.py" for module in MODULES]
    options = ["--python-version", f"3.{sys.version_info.minor}", "--cache-dir", str(build_folder / "mypy")]
    return mypycify(
        [*options, *paths], group_name=PACKAGE, target_dir=str(build_folder / "c"), opt_level="2", debug_level="0"
    )


def _by_cython(scratch: Path) -> list[Any]:
    extensions = [
        Extension(
            f"{PACKAGE}.{module.replace('/', '.')}", [f"{PACKAGE}/{module}.pyx"], extra_compile_args=["-O2", "-g0"]
        )
        for module in CYTHON_MODULES
    ]
    return list(cythonize(extensions, build_dir=str(scratch / "c"), quiet=True))  # type: ignore[no-untyped-call]  # has no types


def _is_current(folder: Path) -> bool:
    from plainsql_server.kernel import MANIFEST, kernel_files  # noqa: PLC0415  # see sys.path below

    return bool(kernel_files(folder, SOURCES / PACKAGE)) and set(json.loads((folder / MANIFEST).read_text())) == {
        *FILES,
        *DECLARATIONS,
    }


# The package is imported as it is here, whatever is installed. Not at the top: what builds a kernel must not load one.
sys.path.insert(0, str(SOURCES))

if __name__ == "__main__":
    if (missing := what_is_missing()) is not None:
        sys.exit(f"The hot path cannot be compiled, for want of {missing}. Everything works without, only slower.")
    place = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SOURCES / PACKAGE / "_kernel"
    if not _is_current(place):
        build_kernel(place)
