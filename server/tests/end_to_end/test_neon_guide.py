"""`docs/neon.md`, done as a reader would: its files saved, its commands run, its output compared.

Two things differ. The packages are those of the tests, and the address and the database are the tests'.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from server.tests.page import NEON
from server.tests.service import Service

_GUIDE = Path(__file__).resolve().parents[3] / "docs/neon.md"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"// (\w+\.mjs)\n")
_PACKAGE = re.compile(r'from "((?:@[\w-]+/)?[\w-]+)')
_LIMIT_S = 60


@pytest.fixture
def folder(service: Service, neon_packages: None, tmp_path: Path) -> Iterator[Path]:
    service.customers.add_database("neon-guide", "dev")
    (tmp_path / ".plainsql").symlink_to(service.folder)
    (tmp_path / "node_modules").symlink_to(NEON / "node_modules")
    yield tmp_path
    service.query("drop table if exists accounts, payments, drizzle_notes", database="neon-guide")


def test_each_program_of_the_guide_prints_what_it_shows(service: Service, folder: Path) -> None:
    blocks = _FENCED.findall(_GUIDE.read_text(encoding="utf-8"))
    settings = "\n".join(text for language, text in blocks if language == "sh" and text.startswith("export "))
    settings = settings.replace("https://localhost:8400", service.data_url).replace("/main", "/neon-guide")
    taken = ("PLAINSQL_", "DATABASE_URL", "NODE_EXTRA_CA_CERTS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
    installed, compared = set[str](), 0
    for (language, text), (next_language, shown) in pairwise([*blocks, ("", "")]):
        if language == "sh" and text.startswith("npm install "):
            installed.update(text.split()[2:])
        elif language == "js" and (name := _NAME.match(text)):
            assert set(_PACKAGE.findall(text)) <= installed, "the guide installs it later, or not at all"
            (folder / name[1]).write_text(text)
        elif language == "sh" and text.startswith("node "):
            done = subprocess.run(
                ["bash", "-ec", f"{settings}\n{text}"], cwd=folder, env=kept, timeout=_LIMIT_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, next_language) == (0, "text"), done.stdout
            assert done.stdout == shown, text
            compared += 1
    assert compared == sum(language == "js" for language, _ in blocks) == 5
