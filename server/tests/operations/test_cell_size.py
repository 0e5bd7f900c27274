"""`plainsql-server doctor` on cells whose sizes do not fit: each is found, and the fix is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plainsql_server.engine.admin.examining import CellFacts
from plainsql_server.engine.admin.extensions import AllowedExtension
from plainsql_server.operations import check_cells
from plainsql_server.operations.check_cells import machine_size, size
from plainsql_server.operations.files import sizing
from plainsql_server.operations.files.cell import CellConfig
from plainsql_server.operations.files.machine_memory import machine_memory_bytes
from plainsql_server.operations.files.sizing import GIB, max_connections
from plainsql_server.operations.findings import Grade
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage
from server.tests.postgres import SUPERUSER, running_postgres

# More than any machine's memory is computed to be enough for, and fewer locks than PostgreSQL's own default.
UNFIT = {"max_connections": "2100", "max_locks_per_transaction": "10", "autovacuum_naptime": "1min"}


@pytest.fixture(scope="module")
def unfit() -> Iterator[Stage]:
    with running_postgres(lambda root: CellConfig(SUPERUSER, str(root), others=UNFIT)) as running:
        yield Stage.made(running)


def test_a_cell_that_does_not_fit_its_memory_or_databases_is_reported(
    unfit: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "_FEW_DATABASES", 0)
    found = doctor(unfit)
    fitting = max_connections(machine_memory_bytes())
    assert_found(found, "It allows 2100 connections; the", f"Set max_connections to {fitting}", "warning")
    assert_found(found, "lock table has 21,640 entries", "Set max_locks_per_transaction to 64", "warning")
    assert_found(found, "visits each of 1 databases every 60 s", "autovacuum_naptime = 5min", "warning")


def found_of(facts: CellFacts, memory_bytes: int, file_limit: int, folder: Path) -> list[str]:
    (folder / "file-max").write_text(f"{file_limit}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_cells, "machine_memory_bytes", lambda: memory_bytes)
        patch.setattr(check_cells, "_FILE_LIMIT", folder / "file-max")
        findings = [*size("cell x", facts), *machine_size("cell x", facts)]
    assert {each.grade for each in findings} <= {Grade.WARNING}
    return [f"{each.found} {each.fix}" for each in findings]


def cell_of(memory_bytes: int, databases: int, **others: str) -> CellFacts:
    """A cell that was configured for this memory."""
    settings = {**CellConfig("admin", "/run", memory_bytes=memory_bytes).settings(), "max_files_per_process": "1000"}
    # As pg_settings shows it: in seconds.
    settings |= {"autovacuum_naptime": "300", **others}
    customers = {f"d_{number:024x}": True for number in range(databases)}
    return CellFacts(150_019, True, True, settings, None, [], customers, [], {}, [])


@pytest.mark.unit
@pytest.mark.parametrize("memory_gib", [1, 8, 24, 256])
def test_a_cell_with_the_files_for_its_memory_fits(memory_gib: int, tmp_path: Path) -> None:
    assert found_of(cell_of(memory_gib * GIB, 1_000), memory_gib * GIB, 2_060_000, tmp_path) == []


@pytest.mark.unit
def test_each_size_that_does_not_fit_has_its_own_fix(tmp_path: Path) -> None:
    assert found_of(cell_of(24 * GIB, 1_000), 8 * GIB, 1_000_000, tmp_path) == [
        "It allows 1596 connections; the 8 GiB of this machine are enough for 572."
        " Set max_connections to 572 and restart PostgreSQL, or add memory.",
        "Its connections may open 1,596,000 files; this machine allows 1,000,000."
        " Run `sysctl -w fs.file-max=1596000`, and put it into /etc/sysctl.d.",
    ]
    often = {"autovacuum_naptime": "60"}
    assert found_of(cell_of(GIB, 500, **often), GIB, 10**9, tmp_path) == []
    assert found_of(cell_of(GIB, 501, **often), GIB, 10**9, tmp_path) == [
        "Autovacuum visits each of 501 databases every 60 s, even if they are idle."
        " Set autovacuum_naptime = 5min and reload PostgreSQL."
    ]
    assert found_of(cell_of(GIB, 1_000), GIB, 10**9, tmp_path) == []
    assert found_of(cell_of(GIB, 10_000), GIB, 10**9, tmp_path) == [
        "Autovacuum visits each of 10000 databases every 300 s, even if they are idle."
        " Set autovacuum_naptime = 200min and reload PostgreSQL."
    ]
    assert found_of(cell_of(GIB, 1, max_locks_per_transaction="64"), GIB, 10**9, tmp_path) == [
        "Its lock table has 20,736 entries, which a single transaction over many tables can fill."
        " Set max_locks_per_transaction to 416 and restart the cell."
    ]


@pytest.mark.unit
def test_an_extension_with_known_vulnerabilities_is_reported() -> None:
    floors = {
        version: AllowedExtension("vector", version, True).floor for version in ("0.8.6", "0.8.7", "0.8.10", "1.0")
    }
    assert floors == {"0.8.6": "0.8.7", "0.8.7": None, "0.8.10": None, "1.0": None}
    assert AllowedExtension("vector", None, False).floor is None
    assert AllowedExtension("citext", "0.1", True).floor is None
