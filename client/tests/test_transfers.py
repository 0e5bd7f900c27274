"""Import and export: whole or not at all, exact, and a bad row by its line and column.

PLAINSQL_TEST_IMPORT_ROWS=1000000 also compares the rate with psql's \\copy.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import plainsql
from client.tests.test_command import run
from server.tests.service import Service

ROWS = int(os.environ.get("PLAINSQL_TEST_IMPORT_ROWS", "12000"))


@pytest.fixture
def table(db: plainsql.Client) -> Iterator[str]:
    name = f"i_{uuid4().hex[:10]}"
    db.query(f"create table {name} (id int8 primary key, name text, price numeric not null, at timestamptz)")
    yield name
    db.query(f"drop table {name}")


def stages(db: plainsql.Client) -> int:
    return int(db.query("select count(*) from pg_class where relname like 'plainsql_import%'").value())


def write_rows(path: Path, rows: int, **changes: str) -> None:
    lines = [
        f"{at},name {'x' * 80} {at},{at % 1000}.{at % 100:02},2026-01-01T00:00:{at % 60:02}Z"
        for at in range(1, rows + 1)
    ]
    for number, line in changes.items():
        lines[int(number.removeprefix("row")) - 1] = line
    path.write_text("id,name,price,at\n" + "\n".join(lines) + "\n")


def test_quotes_line_breaks_nulls_and_empty_strings_survive_the_way_in_and_out(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    content = (
        'id,name,price,at\n1,"a ""q"", b",1.50,2026-01-01T00:00:00.000000Z\n2,"",2,\n3,,3,\n4,"two\nlines\ttab",4,\n'
    )
    (tmp_path / "in.csv").write_text(content)
    assert run(service, "import", str(tmp_path / "in.csv"), "--table", table).returncode == 0
    assert [row.name for row in db.query(f"select name from {table} order by id")] == [
        'a "q", b', "", None, "two\nlines\ttab",
    ]  # fmt: skip
    done = run(service, "export", str(tmp_path / "out.csv"), "--sql", f"select * from {table} order by id")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.csv").read_text().replace("\r\n", "\n") == content.replace("00.000000Z", "00Z")


def test_a_file_of_many_batches_is_imported_whole(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    write_rows(tmp_path / "in.csv", 12_000)
    done = run(service, "import", str(tmp_path / "in.csv"), "--table", table)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "12,000 rows" in done.stderr
    counted = db.query(f"select count(*), sum(id), count(distinct name) from {table}").one()
    assert tuple(counted) == (12_000, 72_006_000, 12_000)
    assert stages(db) == 0


@pytest.mark.parametrize(
    "case",
    [
        (5, {"row4": "4,x,abc,"}, "line 5, column 'price': invalid input syntax for type numeric: \"abc\""),
        (12_000, {"row11000": "11000x,a,1,"}, "line 11001, column 'id': invalid input syntax for type bigint"),
        (12_000, {"row10000": "10000,a,,"}, "line 10001, column 'price': null value in column"),
        (12_000, {"row9000": "5,a,1,"}, "line 9001: duplicate key value violates unique constraint"),
        (12_000, {"row8000": "8000,a,1"}, "line 8001: It has 3 fields, and the header has 4"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_half_imported(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, case: tuple[int, dict[str, str], str]
) -> None:
    rows, change, said = case
    write_rows(tmp_path / "in.csv", rows, **change)
    done = run(service, "import", str(tmp_path / "in.csv"), "--table", table)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert db.query(f"select count(*) from {table}").value() == 0
    assert stages(db) == 0


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_other_forms_make_the_round_trip(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, form: str
) -> None:
    db.query(f"insert into {table} select g, 'n' || g, g + 0.25, '2026-01-01Z' from generate_series(1, 1000) g")
    before = db.query(f"select * from {table} order by id").rows
    path = str(tmp_path / f"out.{form}")
    assert run(service, "export", path, "--table", table).returncode == 0
    db.query(f"delete from {table}")
    done = run(service, "import", path, "--table", table)
    assert done.returncode == 0, done.stderr
    assert db.query(f"select * from {table} order by id").rows == before


def test_an_export_that_fails_leaves_no_file(service: Service, tmp_path: Path) -> None:
    sql = "select 1 / (50000 - g) from generate_series(1, 99999) g"
    done = run(service, "export", str(tmp_path / "out.csv"), "--sql", sql)
    assert done.returncode in (1, 4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(ROWS < 100_000, reason="PLAINSQL_TEST_IMPORT_ROWS=1000000 compares with psql")
def test_importing_is_not_much_slower_than_psql(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    filler = "x" * 60
    with path.open("w") as file:
        file.write("id,name,price,at\n")
        for at in range(1, ROWS + 1):
            file.write(f"{at},name {filler} {at},{at % 1000}.{at % 100:02},2026-01-01T00:00:{at % 60:02}Z\n")
    postgres = service.dev["postgres"]
    began = time.perf_counter()
    subprocess.run(
        ["psql", "-h", postgres["socket"], "-p", str(postgres["port"]), "-U", postgres["superuser"], "-d",
         postgres["database"], "-c", f"\\copy {table} from '{path}' csv header"], check=True, capture_output=True,
    )  # fmt: skip
    psql_s = time.perf_counter() - began
    db.query(f"truncate {table}")
    began = time.perf_counter()
    done = run(service, "import", str(path), "--table", table)
    ours_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    report = {
        "rows": ROWS,
        "bytes": path.stat().st_size,
        "psql_s": psql_s,
        "plainsql_s": ours_s,
        "ratio": psql_s / ours_s,
    }
    print(json.dumps(report))
    assert db.query(f"select count(*) from {table}").value() == ROWS
