"""`docs/neon.md`, done as a reader would: its files saved, its commands run, its output compared.

Two things differ. The packages are those of the tests, and the address and the database are the tests'.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.tests.guide_programs import blocks_of, is_program, run_programs, settings_in
from server.tests.page import NEON
from server.tests.service import Service

_GUIDE = Path(__file__).resolve().parents[3] / "docs/neon.md"
_PACKAGE = re.compile(r'from "((?:@[\w-]+/)?[\w-]+)')


@pytest.fixture
def folder(service: Service, neon_packages: None, tmp_path: Path) -> Iterator[Path]:
    service.customers.add_database("neon-guide", "dev")
    (tmp_path / ".plainsql").symlink_to(service.folder)
    (tmp_path / "node_modules").symlink_to(NEON / "node_modules")
    yield tmp_path
    service.query("drop table if exists accounts, payments, drizzle_notes", database="neon-guide")


def test_each_program_of_the_guide_prints_what_it_shows(service: Service, folder: Path) -> None:
    blocks = blocks_of(_GUIDE)
    settings = settings_in(blocks).replace("https://localhost:8400", service.data_url).replace("/main", "/neon-guide")
    taken = ("PLAINSQL_", "DATABASE_URL", "NODE_EXTRA_CA_CERTS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
    installed: set[str] = set()
    for language, text in blocks:
        if language == "sh" and text.startswith("npm install "):
            installed.update(text.split()[2:])
        elif is_program(language, text):
            assert set(_PACKAGE.findall(text)) <= installed, "the guide installs it later, or not at all"
    compared = run_programs(blocks, settings, folder, kept)
    assert compared == sum(language == "js" for language, _ in blocks) == 5
