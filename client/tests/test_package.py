"""The client as a package: installed, typed, and of the version that it says."""

import re
from importlib import metadata, resources

import pytest

import plainsql

pytestmark = pytest.mark.unit


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert metadata.version("plainsql") == plainsql.VERSION


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert resources.files(plainsql).joinpath("py.typed").is_file()


def test_the_package_needs_no_part_of_the_server_and_little_else() -> None:
    needed = [each for each in metadata.requires("plainsql") or [] if "extra ==" not in each]
    assert sorted(re.split(r"\W*>=", each)[0] for each in needed) == ["h11", "prompt-toolkit"]
