"""Doctor's checks of what keeps a cell running for months, on measures and a /proc of our own."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from plainsql_server.engine.admin.measures import CellMeasures
from plainsql_server.operations.findings import Finding, Grade
from plainsql_server.operations.upkeep import cell_upkeep

pytestmark = pytest.mark.unit

HEALTHY = CellMeasures(
    transaction_id_age=60_000_000, multixact_id_age=10, data_directory="/data", is_archiving=True,
    is_archiving_failing=False, standbys=0, behind_bytes=None, certificate_pem=None,
)  # fmt: skip


def grades(findings: "list[Finding]") -> list[Grade]:
    assert all(each.fix for each in findings if each.grade is not Grade.GOOD)
    return [each.grade for each in findings]


@pytest.mark.parametrize(("age", "grade"), [
    (60_000_000, Grade.GOOD), (600_000_000, Grade.WARNING), (1_600_000_000, Grade.BROKEN),
])  # fmt: skip
def test_old_transaction_ids_are_reported_long_before_the_cell_stops(age: int, grade: Grade) -> None:
    for measures in (replace(HEALTHY, transaction_id_age=age), replace(HEALTHY, multixact_id_age=age)):
        assert grades([*cell_upkeep.transaction_ids("cell", measures)]) == [grade]


def test_certificates_that_expire_are_reported_and_no_key_is_read(tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(days=3)
    authority = trustme.CA()
    cell, client = authority.issue_cert("cell", not_after=soon), authority.issue_cert("client")
    # The key first, as some tools write it.
    client_file, root = tmp_path / "client.pem", tmp_path / "root.pem"
    client.private_key_and_cert_chain_pem.write_to_path(str(client_file))
    authority.cert_pem.write_to_path(str(root))
    pem = cell_upkeep.first_certificate(client_file)
    assert b"CERTIFICATE" in pem
    assert b"KEY" not in pem
    load_pem_private_key(client_file.read_bytes(), None)
    conninfo = f"host=db sslcert={client_file} sslrootcert={root} sslkey={tmp_path / 'missing.key'}"
    measures = replace(HEALTHY, certificate_pem=cell.cert_chain_pems[0].bytes().decode())
    findings = [*cell_upkeep.certificates("cell", conninfo, measures)]
    assert grades(findings) == [Grade.WARNING, Grade.GOOD, Grade.GOOD]
    client_file.write_bytes(b"\xff\x00 nonsense")
    assert grades([*cell_upkeep.certificates("cell", conninfo, HEALTHY)]) == [Grade.WARNING, Grade.GOOD]


def machine(proc: Path, guard: bytes, overcommit: str, available_kb: int, limit: str) -> None:
    (proc / "sys/vm").mkdir(parents=True)
    (proc / "sys/vm/overcommit_memory").write_text(f"{overcommit}\n")
    (proc / "meminfo").write_text(f"MemTotal:       1000 kB\nMemFree: 3 kB\nMemAvailable:    {available_kb} kB\n")
    for pid, arguments in ((11, guard), (12, b"/usr/lib/postgresql/15/bin/postgres\0-D\0/data\0"), (13, b"")):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "cmdline").write_bytes(arguments)
    (proc / "12/limits").write_text(f"Limit   Soft Limit   Hard Limit\nMax data size    {limit}   unlimited  bytes\n")
    # A process that ended meanwhile.
    (proc / "14").mkdir()


def test_a_machine_that_fits_passes(tmp_path: Path) -> None:
    machine(tmp_path, b"/usr/bin/python3\0/usr/bin/plainsql-server\0cell\0guard\0/data/\0", "2", 500, "2147483648")
    assert grades([*cell_upkeep.machine("cell", "/data", tmp_path)]) == [Grade.GOOD] * 3


def test_a_missing_guard_overcommit_and_memory_are_reported(tmp_path: Path) -> None:
    # The guard of another cell, and a name that is no text.
    machine(tmp_path, b"/usr/bin/plainsql-server\0cell\0guard\0/other\0\xff\0", "0", 50, "unlimited ")
    findings = [*cell_upkeep.machine("cell", "/data", tmp_path)]
    assert grades(findings) == [Grade.WARNING] * 4
    assert "guard is not running" in findings[0].found


def test_a_machine_that_tells_nothing_is_no_crash(tmp_path: Path) -> None:
    assert grades([*cell_upkeep.machine("cell", "/data", tmp_path)]) == [Grade.WARNING]
