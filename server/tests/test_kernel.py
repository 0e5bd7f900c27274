"""The compiled kernel never stands for sources that it was not made from, and what runs is what is found."""

import json
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from sys import meta_path

import pytest

from plainsql_server import KERNEL, kernel
from plainsql_server.kernel import KernelFinder, KernelState, digest_of, kernel_files
from server.build_kernel import MODULES, PACKAGE, SOURCES

pytestmark = pytest.mark.unit

SUFFIX = EXTENSION_SUFFIXES[0]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with two sources and a kernel made from them, as far as anybody can tell without loading it."""
    package = tmp_path / "some_package"
    folder = package / "_kernel"
    (folder / "some_package").mkdir(parents=True)
    digests = {}
    for source in ("first.py", "second.py"):
        (package / source).write_text(f"# {source}\n")
        digests[source] = digest_of(package / source)
        (folder / "some_package" / source.replace(".py", SUFFIX)).touch()
    (folder / f"{kernel.SHARED_MODULE}{SUFFIX}").touch()
    (folder / kernel.MANIFEST).write_text(json.dumps(digests))
    return package


def test_a_kernel_of_the_current_sources_is_found(package: Path) -> None:
    files = kernel_files(package / "_kernel", package)
    assert files is not None
    assert sorted(files) == [kernel.SHARED_MODULE, "some_package.first", "some_package.second"]
    assert all(file.exists() for file in files.values())


def test_one_changed_source_disables_the_whole_kernel(package: Path) -> None:
    (package / "second.py").write_text("# changed\n")
    assert kernel_files(package / "_kernel", package) is None


def test_a_deleted_source_disables_the_kernel(package: Path) -> None:
    (package / "first.py").unlink()
    assert kernel_files(package / "_kernel", package) is None


def test_an_unfinished_kernel_is_ignored(package: Path) -> None:
    (package / "_kernel" / kernel.MANIFEST).unlink()
    assert kernel_files(package / "_kernel", package) == {}


def test_a_kernel_for_another_python_is_ignored(package: Path) -> None:
    (package / "_kernel" / f"{kernel.SHARED_MODULE}{SUFFIX}").unlink()
    assert kernel_files(package / "_kernel", package) == {}


def test_a_stale_kernel_is_reported(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "second.py").write_text("# changed\n")
    monkeypatch.setattr(kernel, "FOLDER", package / "_kernel")
    monkeypatch.setattr(kernel, "PACKAGE", package)
    assert kernel.use_kernel() is KernelState.STALE
    assert "make kernel" in capsys.readouterr().err
    assert not any(isinstance(finder, KernelFinder) and finder.files.get("some_package.first") for finder in meta_path)


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_loaded_from_the_kernel_if_there_is_one(module: str) -> None:
    name = f"{PACKAGE}.{module.replace('/', '.')}"
    assert (SOURCES / PACKAGE / f"{module}.py").exists()
    files = kernel_files(kernel.FOLDER, kernel.PACKAGE)
    assert bool(files) is (KERNEL is KernelState.COMPILED)
    loaded = import_module(name).__file__
    assert loaded == str(files[name] if files else SOURCES / PACKAGE / f"{module}.py")


def test_the_finder_leaves_every_other_module_alone() -> None:
    assert KernelFinder({}).find_spec("json") is None
