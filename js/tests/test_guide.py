"""The JavaScript guide, done as a reader would: its files saved, its commands run, its output compared.

Two things differ. The package is installed from what npm would send, and Kysely and Drizzle are those of the tests. The
address is that of the tests' service.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from js.tests.programs import JS, installed, node
from server.tests.guide_programs import blocks_of, run_programs, settings_in
from server.tests.service import Service

PAGE = JS.parent / "docs/javascript.md"


@pytest.fixture
def folder(service: Service, js_package: None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / ".plainsql").symlink_to(service.folder)
        installed(Path(place))
        yield Path(place)
    service.query("drop table if exists tags")
    service.query("drop table if exists notes")


def test_each_program_of_the_guide_prints_what_it_shows(service: Service, folder: Path) -> None:
    blocks = blocks_of(PAGE)
    settings = settings_in(blocks).replace("https://localhost:8400", service.data_url)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PLAINSQL_")}
    compared = run_programs(blocks, settings, folder, kept)
    assert compared == sum(language == "text" for language, _ in blocks) >= 10
    assert len(list(folder.glob("*.mjs"))) == compared + 1


@pytest.mark.parametrize("page", ["README.md", "js/README.md"])
def test_the_program_in_a_readme_runs(service: Service, folder: Path, page: str) -> None:
    (program,) = (text for language, text in blocks_of(JS.parent / page) if language == "js")
    names = {"notes": "id int, body text", "orders": "id int generated always as identity", "measurements": "n int"}
    for name, columns in {**names, "items": "order_id int, name text"}.items():
        service.query(f"create table {name} ({columns})")
    service.query("insert into measurements values (1), (2)")
    try:
        (folder / "program.mjs").write_text(program.replace("https://localhost:8400", service.data_url))
        printed = node(folder / "program.mjs", service=service)
    finally:
        service.query("drop table notes, orders, measurements, items")
    assert printed == ("{ n: 1 }\n{ n: 2 }\n" if page.startswith("js/") else "")


def test_the_guide_names_every_setting_option_and_code_of_the_client() -> None:
    page = PAGE.read_text(encoding="utf-8")
    settings = (
        (JS / "src/settings.ts").read_text() + (JS / "src/client.ts").read_text() + (JS / "src/values.ts").read_text()
    )
    fields = set(re.findall(r"^  (\w+)\?: ", settings, re.MULTILINE)) - {"notices"}
    assert {"int8", "insecure", "maxRetries", "rowFormat"} <= fields
    sources = "".join(path.read_text() for path in JS.glob("src/*.ts"))
    codes = set(re.findall(r'code: "(\w+)"|unexpected\("(\w+)"', sources))
    named = {each for pair in codes for each in pair if each}
    assert {"network_error", "result_truncated"} <= named
    assert [each for each in sorted(fields | named) if f"`{each}`" not in page] == []
