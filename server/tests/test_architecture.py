"""ARCHITECTURE.md names files that exist, and packages stay small enough to live in."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "server/src/plainsql_server"
MODULES_MAX = 20
HOPS_MAX = 12

_TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def test_every_file_and_package_that_it_names_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:/|\.pyx?))`", _TEXT))
    assert len(named) > 50
    missing = {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()}
    assert missing == set()


def test_the_path_of_a_query_has_few_hops() -> None:
    path = _TEXT.partition("## The path of `POST /v1/query`")[2].partition("\n## ")[0]
    hops = re.findall(r"^(\d+)\. ", path, re.MULTILINE)
    assert hops == [str(number) for number in range(1, len(hops) + 1)]
    assert 0 < len(hops) <= HOPS_MAX


def test_every_package_is_described() -> None:
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
    described = {each.rstrip("/") for each in re.findall(r"`([a-z_/]+/)`", _TEXT)}
    # A package whose parts are described needs no line of its own.
    own = {each for each in packages if not any(other.startswith(f"{each}/") for other in described)}
    assert own - described - {".", "cli/cell", "directory/migrations", "directory/migrations/versions"} == set()


def test_no_package_has_too_many_modules() -> None:
    # Migrations only grow in number, and the kernel is generated.
    aside = {"versions", "_kernel"}
    folders = {path.parent for path in PACKAGE.rglob("*.py") if not aside & {*path.parts}}
    counts = {folder: len([each for each in folder.glob("*.py") if each.name != "__init__.py"]) for folder in folders}
    assert {folder.name: count for folder, count in counts.items() if count > MODULES_MAX} == {}
