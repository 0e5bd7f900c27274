"""Import and export: whole or not at all, exact, and a bad row by its line and column.

PLAINSQL_TEST_IMPORT_ROWS=1000000 also compares the rate with psql's \\copy.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
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


def test_quotes_line_breaks_nulls_and_empty_strings_survive_a_round_trip(
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


def test_a_file_of_many_batches_is_imported_completely(
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
        (12_000, {"row9000": "5,a,1,"}, "line 9001: The key id=5 is already on line 6.\n"),
        (5, {"row4": "2,x,1,"}, "line 5: The key id=2 is already on line 3.\n"),
        (5, {"row4": "4,x,,"}, "line 5, column 'price': null value in column"),
        (12_000, {"row8000": "8000,a,1"}, "line 8001: Expected 4 fields, got 3"),
    ],
)
def test_an_invalid_row_is_reported_and_no_partial_batch_is_imported(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, case: tuple[int, dict[str, str], str]
) -> None:
    rows, change, message = case
    write_rows(tmp_path / "in.csv", rows, **change)
    done = run(service, "import", str(tmp_path / "in.csv"), "--table", table)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert ("Nothing was imported." in done.stderr, "select" in done.stderr) == (True, False)
    assert db.query(f"select count(*) from {table}").value() == 0
    assert stages(db) == 0


@pytest.mark.parametrize("output_format", ["ndjson", "parquet"])
def test_other_formats_survive_a_round_trip(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, output_format: str
) -> None:
    db.query(f"insert into {table} select g, 'n' || g, g + 0.25, '2026-01-01Z' from generate_series(1, 1000) g")
    before = db.query(f"select * from {table} order by id").rows
    path = str(tmp_path / f"out.{output_format}")
    assert run(service, "export", path, "--table", table).returncode == 0
    db.query(f"delete from {table}")
    done = run(service, "import", path, "--table", table)
    assert done.returncode == 0, done.stderr
    assert db.query(f"select * from {table} order by id").rows == before


ALL_TYPES = """
    b bool, i2 int2, i8 int8, n numeric, f float8, t text, by bytea, ts timestamptz, d date, ti time, tz timetz,
    iv interval, u uuid, js json, jb jsonb, ia int[], ta text[], na numeric[], ip inet, r int4range, mac macaddr
"""
ALL_VALUES = """
    (true, 1, 9007199254740993, 1.10, 0.1, 'a,"b"', '\\x00ff5c', '2026-01-01Z', '2026-01-02', '03:04', '03:04+01',
     '1 mon 2 days 00:00:01.5', 'dd0ee244-fa0c-4a9d-8110-021df457eaf3', '[1.50]', '{"a": [1, null]}', '{1,NULL,3}',
     '{"a,b","NULL","",NULL,"q\\"s"}', '{1.10,NaN}', '10.0.0.1/8', '[1,5)', '08:00:2b:01:02:03'),
    (false, -1, -1, 'NaN', 'Infinity', '', '', 'infinity', '-infinity', '24:00', '00:00Z', '-1 year', null, 'null',
     '"x"', '{}', '{}', '{{1,2},{3,4}}', '::1', 'empty', null),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
     null, null)
"""


@pytest.mark.parametrize("output_format", ["csv", "ndjson"])
def test_every_kind_of_value_survives_a_round_trip(
    service: Service, db: plainsql.Client, tmp_path: Path, output_format: str
) -> None:
    name = f"all_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int generated always as identity, {ALL_TYPES})")
    columns = ", ".join(each.split()[0] for each in ALL_TYPES.split(","))
    db.query(f"insert into {name} ({columns}) values {ALL_VALUES}")
    # A JSON null in NDJSON cannot be distinguished from none.
    db.query(f"update {name} set js = '{{}}' where js::text = 'null'")
    before = db.query(f"select {name}::text from (select {columns} from {name} order by id) {name}").rows
    path = str(tmp_path / f"out.{output_format}")
    done = run(service, "export", path, "--sql", f"select {columns} from {name} order by id")
    assert done.returncode == 0, done.stderr
    db.query(f"delete from {name}")
    done = run(service, "import", path, "--table", name)
    assert done.returncode == 0, done.stderr
    assert db.query(f"select {name}::text from (select {columns} from {name} order by id) {name}").rows == before
    db.query(f"drop table {name}")


def test_parquet_keeps_bytes_times_and_numbers_of_any_scale_over_many_groups(
    service: Service, db: plainsql.Client, tmp_path: Path
) -> None:
    name = f"pq_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int, n numeric, by bytea, ts timestamptz, tz timetz, a int[])")
    # A group has 50,000 rows: the first has no number, and the second has numbers of two scales.
    db.query(
        f"insert into {name} select g, case when g > 50009 then 12345.678 when g > 50000 then g end, '\\x00ff',"
        " '2026-01-01Z', '03:04:05.6-03:30', '{1,2}' from generate_series(1, 50010) g"
    )
    numbers_and_bytes = "count(*), sum(n), count(distinct by), min(encode(by, 'hex'))"
    asked = f"select {numbers_and_bytes}, min(ts), count(distinct tz), min(tz), min(a::text) from {name}"
    before = db.query(asked).rows
    path = str(tmp_path / "out.parquet")
    done = run(service, "export", path, "--sql", f"select * from {name} order by id")
    assert done.returncode == 0, done.stderr
    db.query(f"delete from {name}")
    done = run(service, "import", path, "--table", name)
    assert done.returncode == 0, done.stderr
    assert db.query(asked).rows == before
    db.query(f"drop table {name}")


def test_empty_lines_of_a_single_column_are_nulls_and_none_is_lost(
    service: Service, db: plainsql.Client, tmp_path: Path
) -> None:
    name = f"one_{uuid4().hex[:8]}"
    db.query(f"create table {name} (it text)")
    # More than a batch of them, so that batches end among empty lines.
    (tmp_path / "in.csv").write_bytes(b"it\n" + (b"x" * 63 + b"\n\n\n") * 20_000)
    done = run(service, "import", str(tmp_path / "in.csv"), "--table", name)
    assert done.returncode == 0, done.stderr
    assert tuple(db.query(f"select count(*), count(it) from {name}").one()) == (60_000, 20_000)
    db.query(f"drop table {name}")


def test_a_tsv_has_tabs_and_ndjson_may_leave_columns_out(service: Service, db: plainsql.Client, tmp_path: Path) -> None:
    name = f"d_{uuid4().hex[:8]}"
    db.query(f"create table {name} (id int generated always as identity, a text, b text default 'by default')")
    (tmp_path / "in.tsv").write_text("a\tb\nx, y\tz\n")
    (tmp_path / "in.ndjson").write_text('{"a": "from json"}\n\n{"a": null}\n')
    for file in ("in.tsv", "in.ndjson"):
        done = run(service, "import", str(tmp_path / file), "--table", name)
        assert done.returncode == 0, done.stderr
    assert [tuple(row) for row in db.query(f"select * from {name} order by id")] == [
        (1, "x, y", "z"), (2, "from json", "by default"), (3, None, "by default"),
    ]  # fmt: skip
    db.query(f"drop table {name}")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("in.csv", b"id,price\n1,1\n2,\xff\n", "line 3: The byte 0xff isn't valid UTF-8"),
        ("in.csv", b'id,price\n1,1\n2,"3\n', "line 3: Unclosed or unexpected quotation mark"),
        ("in.csv", b"id,price\n1,1\n\n2,2\n", "line 3: Expected 2 fields, got 1"),
        ("in.csv", b"id\n1\n2,2\n", "line 3: Expected 1 field, got 2"),
        ("in.ndjson", b'{"id": 1, "price": 1}\n\n{"id": 2, "pirce": 1}\n', "line 3, column 'pirce': Unknown column"),
        ("in.ndjson", b'{"id": 1, "price": 1}\n{"id": 2,\n', "line 2: Invalid JSON"),
        ("in.ndjson", b'{"id": 1, "price": 1}\n{"id": 2, "price": "x"}\n', "line 2, column 'price': invalid input"),
    ],
)
def test_an_unreadable_line_is_reported_by_its_number(  # noqa: PLR0917  # fixtures
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    (tmp_path / file).write_bytes(content)
    done = run(service, "import", str(tmp_path / file), "--table", table)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert db.query(f"select count(*) from {table}").value() == 0


@pytest.mark.parametrize(
    ("file", "content", "advice"),
    [
        ("in.csv", 'Day;Region;Amount\n2026-01-01;"a ""b""";1,50\n', "no comma but 2 semicolons: {} --delimiter ';'."),
        ("in.csv", "id;price\n1;2\n", "no comma but 1 semicolon: {} --delimiter ';'."),
        ("in.csv", "id\tprice\n1\t2\n", "no comma but 1 tab: {} --delimiter $'\\t'."),
        ("in.tsv", "id,price\n1,2\n", "no tab but 1 comma: {} --delimiter ','."),
    ],
)
def test_another_delimiter_is_recognized_by_the_header(  # noqa: PLR0917  # fixtures
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, file: str, content: str, advice: str
) -> None:
    (tmp_path / file).write_text(content)
    for target in ([table], [f"{table}_new", "--create"]):
        done = run(service, "import", file, "--table", *target, cwd=tmp_path)
        message = (
            f"The first line has {advice.format('try plainsql import with')} If it is one column, give --delimiter "
        )
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    if "price" in content:
        delimiter = content[2]
        assert run(service, "import", file, "--table", table, "--delimiter", delimiter, cwd=tmp_path).returncode == 0
        assert db.query(f"select id, price from {table}").one() == (1, 2)


def test_a_name_in_quotation_marks_may_contain_another_delimiter(
    service: Service, db: plainsql.Client, tmp_path: Path
) -> None:
    name = f"q_{uuid4().hex[:8]}"
    (tmp_path / "in.csv").write_text('"a;b"\n1\n')
    done = run(service, "import", "in.csv", "--table", name, "--create", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    db.query(f"drop table {name}")


# Long enough for the display to be drawn several times.
_NOW_AND_THEN_SLOW = "case when random() < 0.02 then pg_sleep(0.002) end"


def test_progress_shows_rows_rate_and_time_left_on_a_terminal_alone(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    write_rows(tmp_path / "in.csv", 40_000)
    for arguments, verb in (
        (["import", str(tmp_path / "in.csv"), "--table", table], "Importing"),
        (["export", str(tmp_path / "out.csv"), "--sql", f"select *, {_NOW_AND_THEN_SLOW} from {table}"], "Exporting"),
    ):
        seen = on_a_terminal(service, *arguments)
        shown = verb + r" \[[█·]{24}\] +\d+% [\d,]+ rows, [\d,]+ rows/s, (about )?\d+ s left"
        assert re.search(shown, seen), seen[-2000:]
        assert re.search(r"(Imported into|Exported to) \S+: 40,000 rows in [\d.]+ s, [\d,]+ rows/s\.", seen)
        db.query(f"analyze {table}")
    assert "\r" not in run(service, "export", str(tmp_path / "again.csv"), "--table", table).stderr


def on_a_terminal(service: Service, *arguments: str) -> str:
    """What the command writes to standard error if that is a terminal."""
    ours, theirs = os.openpty()
    settings = {"PLAINSQL_URL": service.data_url, "PLAINSQL_KEY": service.api_key}
    environment = {**os.environ, **settings, "PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    command = [str(Path(sys.executable).with_name("plainsql")), *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment):
        os.close(theirs)
        seen = b""
        # A terminal whose other end is closed is an error to read from.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65536):
                seen += chunk
    os.close(ours)
    return seen.decode()


def test_an_export_that_fails_leaves_no_file(service: Service, tmp_path: Path) -> None:
    sql = "select 1 / (50000 - g) from generate_series(1, 99999) g"
    done = run(service, "export", str(tmp_path / "out.csv"), "--sql", sql)
    assert done.returncode in (1, 4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
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
    assert report["ratio"] >= 0.3
