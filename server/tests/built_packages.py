"""The packages of server and client, as `make packages` builds them.

made = build_packages(folder, sys.executable, is_quick=True)
made.server_wheel
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from console.tests.programs import build as build_console

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv/bin/uv"
_BUILD_LIMIT_S = 600
# What of a checkout is no source of a package.
_NOT_SOURCES = shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__")


def users_environment() -> dict[str, str]:
    """Without what leads to this checkout and its environment."""
    ours = ("PLAINSQL_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, cwd: Path = Path("/"), **environment: str) -> str:
    """What a command prints that must succeed, in a user's environment."""
    ended = subprocess.run(
        command, cwd=cwd, env={**users_environment(), **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=_BUILD_LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@dataclass(frozen=True)
class Packages:
    """What `make packages` made with one Python."""

    python: str
    folder: Path

    @property
    def server_wheel(self) -> Path:
        return self._only("plainsql_server-*.whl")

    @property
    def client_wheel(self) -> Path:
        return self._only("plainsql-*.whl")

    @property
    def server_sdist(self) -> Path:
        return self._only("plainsql_server-*.tar.gz")

    @property
    def client_sdist(self) -> Path:
        return self._only("plainsql-*.tar.gz")

    def _only(self, pattern: str) -> Path:
        (found,) = self.folder.glob(pattern)
        return found


def build_packages(folder: Path, python: str, *, is_quick: bool) -> Packages:
    """Builds both from a copy of this checkout in a folder, with the console as it is built here."""
    build_console()
    # The guides in the server's package are links to docs.
    for name in ("server", "client", "docs"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=_NOT_SOURCES)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in ("Makefile", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    made = Packages(python, folder / "dist")
    compiler = {"CC": quick_compiler(folder)} if is_quick else {}
    printed = run(
        "make", "--silent", "packages", "CONSOLE=", f"BIN={UV.parent}", f"PYTHON={python}", cwd=folder, **compiler
    )
    assert f'pip install "{made.server_wheel}[dev]" "{made.client_wheel}"' in printed
    return made


def quick_compiler(folder: Path) -> str:
    """A C compiler that takes a third of the time, because it does not optimize."""
    file = folder / "quick-cc"
    file.write_text('#!/bin/sh\nexec gcc "$@" -O0\n')
    file.chmod(0o755)
    return str(file)
