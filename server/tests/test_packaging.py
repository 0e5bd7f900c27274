"""What a package contains, and which of its two forms runs: compiled, or not."""

import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from plainsql_server.extension_modules import MODULES
from server.tests.extension_files import PACKAGE, SUFFIX, copy_uncompiled, is_stale

# Python makes the last two itself.
_NOT_DATA = (".py", ".pyc", ".so")


def run_with(folder: Path, code: str) -> "subprocess.CompletedProcess[str]":
    """Runs Python code with what is in this folder before all else."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.unit
def test_every_extension_module_is_listed() -> None:
    sources = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.pyx")}
    assert {*MODULES} == sources


@pytest.mark.unit
def test_every_file_of_the_package_is_installed() -> None:
    settings = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    names = {path.name for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in _NOT_DATA}
    assert len(names) > 20
    assert {name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
    assert [each for each in patterns if not any(fnmatch(name, each) for name in names)] == []


@pytest.mark.unit
@pytest.mark.parametrize("source", ["one.pyx", "one.pxd", "other.pyx"])
def test_a_source_that_changed_after_the_compilation_is_noticed(tmp_path: Path, source: str) -> None:
    for second, name in enumerate(["one.pyx", "one.pxd", "other.pyx", f"one{SUFFIX}", f"other{SUFFIX}"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (second, second))
    assert not is_stale(tmp_path)
    os.utime(tmp_path / source, (10, 10))
    assert is_stale(tmp_path)
    # It and what depends on it is compiled again, and no more.
    os.utime(tmp_path / f"one{SUFFIX}", (11, 11))
    assert not is_stale(tmp_path)


@pytest.mark.unit
def test_what_is_not_compiled_is_not_stale(tmp_path: Path) -> None:
    (tmp_path / "one.pyx").touch()
    (tmp_path / "one.cpython-30-other.so").touch()
    os.utime(tmp_path / "one.cpython-30-other.so", (0, 0))
    assert not is_stale(tmp_path)


@pytest.mark.parametrize("missing", ["engine.encoding.row_writer", "lane.track"])
def test_without_one_of_them_none_is_used(tmp_path: Path, missing: str) -> None:
    package = copy_uncompiled(tmp_path)
    for name in {*MODULES} - {missing}:
        package.joinpath(*name.split(".")).with_suffix(SUFFIX).touch()
    ended = run_with(tmp_path, "from plainsql_server.engine.encoding import rows; print(rows._writer_class)")
    assert (ended.stdout, ended.stderr) == ("None\n", "")


def test_a_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    package = copy_uncompiled(tmp_path)
    for name in MODULES:
        package.joinpath(*name.split(".")).with_suffix(SUFFIX).write_bytes(b"no library")
    ended = run_with(tmp_path, "import plainsql_server.engine.encoding.rows")
    assert ended.returncode != 0
    assert "ImportError" in ended.stderr
    assert f"row_writer{SUFFIX}" in ended.stderr


def test_without_a_compiler_the_build_succeeds_and_says_that_it_leaves_them_out(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "setup.py",
        "--quiet",
        "build_ext",
        f"--build-lib={tmp_path}",
        f"--build-temp={tmp_path}",
    ]
    environment = {**os.environ, "CC": str(tmp_path / "no-compiler")}
    ended = subprocess.run(
        command, cwd=PACKAGE.parents[1], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("NOT COMPILED: there is no C compiler here") == 1
    assert list(tmp_path.rglob("*.so")) == []
