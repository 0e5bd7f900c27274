"""The packages as users get them: built with nothing but what they require, installed in a new environment, and run.

PLAINSQL_TEST_PYTHONS names the Pythons to do it with, by version or by path: this one unless given. With it,
`make test-packages` also runs the service in its first and oldest environments, with a first query.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

from plainsql_server import VERSION
from plainsql_server.extension_modules import MODULES
from plainsql_server.http.app.web_pages import GUIDES
from server.tests.built_packages import ROOT, UV, Packages, build_packages, run, users_environment
from server.tests.processes import wait_for
from server.tests.service import FREE_PORTS

# Compiling takes as long as it takes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PYTHONS = os.environ.get("PLAINSQL_TEST_PYTHONS", sys.executable).split()
IN_FULL = "PLAINSQL_TEST_PYTHONS" in os.environ
_READY_LIMIT_S = 60


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has the packages."""

    folder: Path

    def run(self, program: str, *arguments: str, cwd: Path = Path("/")) -> str:
        return run(self.folder / "bin" / program, *arguments, cwd=cwd)

    def install(self, *arguments: str | Path) -> None:
        run(UV, "pip", "install", "--quiet", "--python", self.folder, *arguments)


def new_environment(packages: Packages, folder: Path, *options: str) -> Environment:
    run(UV, "venv", "--quiet", "--python", packages.python, folder)
    environment = Environment(folder)
    environment.install(*options, f"{packages.server_wheel}[dev]", packages.client_wheel)
    return environment


@pytest.fixture(scope="module", params=PYTHONS)
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return build_packages(tmp_path_factory.mktemp("checkout"), request.param, is_quick=not IN_FULL)


@pytest.fixture(scope="module")
def environment(packages: Packages) -> Environment:
    # The versions that all other tests run with.
    pinned = str(ROOT / "requirements/dev.txt")
    return new_environment(packages, packages.folder.with_name("venv"), "--constraint", pinned)


@pytest.mark.compiled
def test_the_installed_commands_run_compiled(environment: Environment) -> None:
    assert environment.run("plainsql-server", "--version") == f"plainsql-server {VERSION} (compiled)\n"
    assert environment.run("plainsql", "--version") == f"plainsql {VERSION}\n"


def test_without_a_compiler_the_sdist_is_installed_and_says_that_it_is_not_compiled(
    packages: Packages, environment: Environment, tmp_path: Path
) -> None:
    printed = run(
        UV, "build", "--wheel", "--python", packages.python, "--out-dir", tmp_path, packages.server_sdist,
        CC=str(tmp_path / "no-compiler"),
    )  # fmt: skip
    assert printed.count("NOT COMPILED") == 1
    (wheel,) = tmp_path.glob("*.whl")
    # Before the compiled one, with the same dependencies.
    environment.install("--no-deps", "--target", tmp_path / "first", wheel)
    python, first = environment.folder / "bin/python", str(tmp_path / "first")
    assert (
        run(python, "-m", "plainsql_server", "--version", PYTHONPATH=first)
        == f"plainsql-server {VERSION} (not compiled)\n"
    )


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [each for each in files.namelist() if each.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(files.read(name))


@pytest.mark.parametrize("project", ["server", "client"])
def test_the_metadata_is_complete(packages: Packages, project: str) -> None:
    wheel = packages.server_wheel if project == "server" else packages.client_wheel
    described = metadata(wheel)
    assert described["Version"] == VERSION
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Requires-Python"] == ">=3.11"
    assert described["Description-Content-Type"] == "text/markdown"
    assert str(described.get_payload()).strip() == (ROOT / project / "README.md").read_text().strip()
    for field in ("Summary", "Author", "Keywords"):
        assert described[field], field
    classifiers = described.get_all("Classifier", [])
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    needed = [each for each in described.get_all("Requires-Dist", []) if not each.startswith("sqlalchemy[asyncio]")]
    assert [each for each in needed if ">=" not in each] == []
    with zipfile.ZipFile(wheel) as files:
        (licence,) = [each for each in files.namelist() if each.endswith("/licenses/LICENSE")]
        assert files.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_packages_hold_every_source_and_nothing_else(packages: Packages) -> None:
    for project, sdist in (("server", packages.server_sdist), ("client", packages.client_sdist)):
        with tarfile.open(sdist) as files:
            names = {each.name.partition("/")[2] for each in files.getmembers() if each.isfile()}
        here = packages.folder.parent / project
        sources = {str(each.relative_to(here)) for each in (here / "src").rglob("*") if is_source(each)}
        assert {name for name in names if name.startswith("src/") and ".egg-info/" not in name} == sources
        assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_servers_wheel_holds_every_guide(packages: Packages) -> None:
    folder = ROOT / "server/src/plainsql_server/http/app/pages/guides"
    with zipfile.ZipFile(packages.server_wheel) as files:
        for name in GUIDES:
            packed = files.read(f"plainsql_server/http/app/pages/guides/{name}.md")
            assert packed == (folder / f"{name}.md").read_bytes()


def test_the_servers_packages_hold_the_console(packages: Packages) -> None:
    folder = ROOT / "server/src/plainsql_server/http/control/console_files"
    with zipfile.ZipFile(packages.server_wheel) as files:
        packed = {each.rpartition("/")[2] for each in files.namelist() if "/control/console_files/" in each}
    assert "index.html.gz" in packed
    assert packed == {each.name for each in folder.iterdir()}


def test_packages_without_the_console_are_not_built(packages: Packages, tmp_path: Path) -> None:
    command = ["make", "--silent", "packages", "CONSOLE=", f"BIN={UV.parent}", f"PYTHON={packages.python}"]
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    shutil.copy(ROOT / "requirements/uv.txt", tmp_path / "requirements")
    ended = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert "run `make console`" in ended.stderr


@pytest.mark.compiled
def test_the_servers_wheel_holds_every_extension_module(packages: Packages) -> None:
    with zipfile.ZipFile(packages.server_wheel) as files:
        compiled = {name.partition(".")[0] for name in files.namelist() if name.endswith(".so")}
    assert compiled == {f"plainsql_server/{name.replace('.', '/')}" for name in MODULES}


def is_source(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".so", ".pyc") and ".egg-info" not in path.parent.name


@dataclass(frozen=True)
class FirstRun:
    """`plainsql-server dev` in an environment and an empty folder, until its end."""

    environment: Environment
    folder: Path
    process: "subprocess.Popen[bytes]"

    def wait_ready(self) -> None:
        wait_for(self._is_ready, _READY_LIMIT_S, self.output)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.output()
        return "Press Ctrl-C" in self.output()


def first_run(environment: Environment, folder: Path) -> Iterator[FirstRun]:
    folder.chmod(0o755)
    with (folder / "output").open("wb") as output:
        command = [str(environment.folder / "bin/plainsql-server"), "dev", *FREE_PORTS]
        process = subprocess.Popen(command, cwd=folder, env=users_environment(), stdout=output, stderr=output)
    try:
        yield FirstRun(environment, folder, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_READY_LIMIT_S)


@pytest.fixture(params=["pinned", "newest", "oldest"])
def running(
    request: pytest.FixtureRequest, packages: Packages, environment: Environment, tmp_path: Path
) -> Iterator[FirstRun]:
    """With the versions that are pinned, and with the newest and the oldest of what the packages allow."""
    resolution = {"newest": "highest", "oldest": "lowest-direct"}.get(request.param)
    if resolution:
        environment = new_environment(packages, tmp_path / "venv", "--resolution", resolution)
    (tmp_path / "empty").mkdir()
    yield from first_run(environment, tmp_path / "empty")


@pytest.mark.full
def test_the_first_query_works(running: FirstRun) -> None:
    running.wait_ready()
    answer = running.environment.run("plainsql", "sql", "-o", "csv", "select 1 + 1 as two", cwd=running.folder)
    assert "two\n2\n" in answer
    doctor = f"{running.environment.folder}/bin/plainsql-server doctor --disk-free-percent 0"
    assert "XX" not in run("sh", "-c", f". .plainsql/operator.env && {doctor}", cwd=running.folder)
