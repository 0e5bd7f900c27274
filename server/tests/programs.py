"""Programs and libraries that some tests need and that a machine may lack.

Where one is missing, the tests that need it are skipped and say why. The gate sets PLAINSQL_TEST_GATE: there, a test
that is skipped fails.
"""

import os
import shutil
from pathlib import Path

import pytest

IN_GATE = bool(os.environ.get("PLAINSQL_TEST_GATE"))


# Where programs are that others start: netavark and aardvark-dns are podman's.
OTHER_FOLDERS = ("/usr/sbin", "/usr/libexec/podman", "/usr/lib/podman")


def need(*programs: str) -> None:
    """Skips the test where one of these programs is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *OTHER_FOLDERS])
    for program in programs:
        if shutil.which(program, path=path) is None:
            _lack(program)


def libfaketime(name: str) -> str:
    """The path of one of the libraries of Debian's package libfaketime."""
    for found in Path("/usr/lib").glob(f"*/faketime/{name}"):
        return str(found)
    return _lack("libfaketime")


def _lack(what: str) -> str:
    pytest.skip(f"{what} is not installed")
