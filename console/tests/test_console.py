"""The console in headless Chromium over TLS, as a person uses it."""

import gzip
import json

import pytest

from console.tests.programs import CONSOLE, FILES, node_test
from server.tests.load import STALL_S
from server.tests.service import Service

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("console_built")]

FIRST_LOAD_BYTES_MAX = 300_000
PARTS = ["query", "session", "keyboard", "tables", "create", "diagram", "import", "admin", "security", "pictures"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_console_works_as_a_person_uses_it(service: Service, part: str) -> None:
    node_test(part, service)


@pytest.mark.timing
def test_a_million_rows_stay_smooth_and_are_cancelled(service: Service) -> None:
    node_test("million", service, PLAINSQL_TEST_SLOWNESS="2.5" if STALL_S else "1")


@pytest.mark.timing
def test_the_console_can_be_used_soon_after_it_was_opened(service: Service) -> None:
    node_test("start", service, PLAINSQL_TEST_SLOWNESS="2.5" if STALL_S else "1")


def test_the_first_page_loads_less_than_300_kb() -> None:
    manifest = json.loads(gzip.decompress((FILES / "manifest.json.gz").read_bytes()))
    names = {"index.html"}
    waiting = ["index.html"]
    while waiting:
        entry = manifest[waiting.pop()]
        names |= {entry["file"], *entry.get("css", [])}
        waiting += entry.get("imports", [])
    sizes = {name: (FILES / f"{name}.gz").stat().st_size for name in names}
    print(f"measured: the first page loads {sum(sizes.values()) / 1000:.0f} kB, compressed")
    assert len(sizes) > 2
    assert sum(sizes.values()) <= FIRST_LOAD_BYTES_MAX, sizes


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (CONSOLE / "package-lock.json").read_text()
