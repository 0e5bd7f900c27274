"""`plainsql import` into a table that it creates, and of rows that exist already."""

import datetime as dt
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plainsql
from client.tests.test_command import run
from plainsql.command import importing
from plainsql.command.arguments import parse
from plainsql.command.creating import type_of
from plainsql.command.importing import _analyze, _drop_if_empty, import_file
from server.tests.service import Service


@pytest.fixture
def table(db: plainsql.Client) -> Iterator[str]:
    name = f"made_{uuid4().hex[:8]}"
    yield name
    db.query(f"drop table if exists {name}")


COLUMNS = {
    "id": "int8", "price": "numeric", "ok": "bool", "day": "date", "at": "timestamptz", "Big Name": "text",
    "zip": "text",
}  # fmt: skip
CSV = """id,price,ok,day,at,Big Name,zip
1,2,true,2026-01-02,2026-01-02T03:04:05Z,"a ""b"", c",01234
2,2.50,false,,2026-01-02 03:04:05+01:00,,99999
"""


def columns_of(db: plainsql.Client, table: str) -> dict[str, str]:
    sql = (
        "select attname::text as name, atttypid::regtype::text as type from pg_attribute where attrelid = $1::regclass"
    )
    names = {
        "bigint": "int8",
        "boolean": "bool",
        "timestamp with time zone": "timestamptz",
        "double precision": "float8",
    }
    found = db.query(f"{sql} and attnum > 0 order by attnum", table)
    return {row.name: names.get(row.type, row.type) for row in found}


def test_a_csv_file_makes_its_table(service: Service, db: plainsql.Client, table: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(CSV)
    arguments = ["import", str(tmp_path / "in.csv"), "--table", table, "--create"]
    done = run(service, *arguments)
    assert done.returncode == 0, done.stderr
    assert columns_of(db, table) == COLUMNS
    assert db.query(f"select price::text, zip from {table} order by id").rows == [("2", "01234"), ("2.50", "99999")]
    # It exists now, so its rows are added.
    assert run(service, *arguments).returncode == 0
    assert db.query(f"select count(*) from {table}").value() == 4


def test_the_import_says_what_it_created_and_which_cell_made_a_column_text(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id,price,name\n1,2.50,a\n2,n/a,b\n3,1,c\n")
    done = run(service, "import", str(tmp_path / "in.csv"), "--table", table.upper(), "--create")
    assert done.returncode == 0, done.stderr
    assert f"Created table {table}: id int8, price text, name text.\n" in done.stderr
    assert f"Column 'price' is text and not numeric: {tmp_path}/in.csv, line 3 has 'n/a'.\n" in done.stderr
    assert f"Imported into {table}: 3 rows" in done.stderr
    assert "'name' is text" not in done.stderr
    (tmp_path / "in.ndjson").write_text('{"a": 1}\n{"a": "x"}\n{"a": 2}\n')
    db.query(f"drop table {table}")
    done = run(service, "import", str(tmp_path / "in.ndjson"), "--table", table, "--create")
    assert "Column 'a' is text and not int8" in done.stderr
    assert "line 2 has 'x'" in done.stderr


@pytest.mark.parametrize("more", [[], ["--on-conflict", "update"]])
def test_a_key_that_the_file_has_twice_is_reported_with_both_lines(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, more: list[str]
) -> None:
    lines = ['"two\nlines",2026-01-01,1', "b,2026-01-02,2", '"two\nlines",2026-01-01,3']
    (tmp_path / "dup.csv").write_text("shop,day,n\n" + "\n".join(lines))
    arguments = ["--table", table, "--create", "--primary-key", "day,shop", *more]
    done = run(service, "import", "dup.csv", *arguments, cwd=tmp_path)
    shown = done.stderr.splitlines()[1:]
    assert (done.returncode, shown[0]) == (1, f"Created table {table}: shop text, day date, n int8."), done.stderr
    assert shown[1] == f"Dropped table {table} again."
    assert shown[2].startswith("Nothing was imported.")
    assert shown[3:] == ["dup.csv, line 5: The key shop=two⏎lines, day=2026-01-01 is already on line 2."]
    assert db.query("select to_regclass($1)", table).value() is None
    piped = run(
        service, "import", "-", "--format", "csv", *arguments, input="shop,day,n\na,2026-01-01,1\na,2026-01-01,2\n"
    )
    assert "-, row 2: The key shop=a, day=2026-01-01 is already in row 1.\n" in piped.stderr


def test_a_row_that_violates_a_constraint_is_reported_without_our_own_sql(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    db.query(
        f"create table {table} (id int primary key, kind text check (kind <> 'z'), mail text,"
        " parent int references {0} deferrable initially deferred)".format(table)
    )
    db.query(f"create unique index on {table} (lower(mail))")
    db.query(f"insert into {table} values (7, 'a', 'x@y.z', 7)")
    for row, message in (
        ("3,z,,", "line 4: new row for relation"),
        ("7,b,,", "line 4: duplicate key value"),
        ("3,b,M@1,", "line 4: duplicate key value"),
        ("3,b,,99", "insert or update on table"),
    ):
        (tmp_path / "in.csv").write_text(f"id,kind,mail,parent\n1,b,m@1,\n2,b,m@2,\n{row}\n4,b,m@4,\n")
        done = run(service, "import", "in.csv", "--table", table, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
        assert ("Nothing was imported." in done.stderr, "select" in done.stderr) == (True, False), done.stderr
        assert "already on line" not in done.stderr
    assert db.query(f"select count(*) from {table}").value() == 1


def test_names_with_capitals_are_shown_as_sql_needs_them_or_made_lower_case(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("Day,Amount,region\n2026-01-01,5,north\n")
    arguments = ["import", "in.csv", "--table", table, "--create"]
    done = run(service, *arguments, cwd=tmp_path)
    assert f'Created table {table}: "Day" date, "Amount" int8, region text.\n' in done.stderr
    advice = 'In SQL, write these names with quotation marks: "Day", "Amount".'
    assert f"{advice} To have them in lower case, import into a new table with --lower-case.\n" in done.stderr
    assert db.query(f'select sum("Amount") from {table}').value() == 5
    db.query(f"drop table {table}")
    for count in (1, 2):
        more = ["--primary-key", "Day", "--on-conflict", "update"]
        done = run(service, *arguments, "--lower-case", *more, cwd=tmp_path)
        assert (done.returncode, "quotation marks" in done.stderr) == (0, False), done.stderr
        assert (f"Created table {table}: day date, amount int8, region text." in done.stderr) == (count == 1)
    assert db.query(f"select day::text, amount from {table}").one() == ("2026-01-01", 5)
    (tmp_path / "in.csv").write_text("a,A\n1,2\n")
    db.query(f"drop table {table}")
    both = run(service, *arguments, "--lower-case", cwd=tmp_path)
    assert (both.returncode, "differ in case alone" in both.stderr) == (2, True)
    needless = run(service, "import", "in.csv", "--table", table, "--lower-case", cwd=tmp_path)
    assert (needless.returncode, "--lower-case is for a new table: it needs --create." in needless.stderr) == (2, True)


def test_a_missing_table_leads_to_create_and_a_filled_one_has_its_row_estimate(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id\n" + "".join(f"{at}\n" for at in range(100)))
    missing = run(service, "import", "in.csv", "--table", table, cwd=tmp_path)
    advice = f"Table {table} doesn't exist. To create it, use plainsql import with --create."
    assert (missing.returncode, advice in missing.stderr) == (1, True)
    assert run(service, "import", "in.csv", "--table", table, "--create", cwd=tmp_path).returncode == 0
    assert db.query("select reltuples from pg_class where relname = $1", table).value() == 100


def test_a_table_that_the_import_created_with_a_key_can_be_updated_by_the_same_command(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    arguments = ["import", str(tmp_path / "in.csv"), "--table", table, "--create", "--on-conflict", "update"]
    for price in (1, 2):
        (tmp_path / "in.csv").write_text(f"shop,id,price\na,1,{price}\na,2,{price}\n")
        done = run(service, *arguments, "--primary-key", "shop, id")
        assert done.returncode == 0, done.stderr
        assert db.query(f"select sum(price), count(*) from {table}").one() == (2 * price, 2)
    db.query(f"drop table {table}")
    unknown = run(service, *arguments, "--primary-key", "nr")
    assert (unknown.returncode, "the file has no column 'nr'" in unknown.stderr) == (2, True)
    assert run(service, "import", "in.csv", "--table", table, "--primary-key", "id", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_names_may_differ_from_the_columns_in_case(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, kind: str
) -> None:
    db.query(f'create table {table} (id int, "Name" text, name text, data bytea)')
    content = {"csv": "ID,Name,Data\n1,x,YQ==\n", "ndjson": '{"ID": 1, "Name": "x", "Data": "YQ=="}\n'}[kind]
    (tmp_path / f"in.{kind}").write_text(content)
    done = run(service, "import", str(tmp_path / f"in.{kind}"), "--table", table)
    assert (done.returncode, db.query(f"select * from {table}").one()) == (0, (1, "x", None, b"a")), done.stderr
    (tmp_path / f"in.{kind}").write_text(content.replace("Name", "NAME").replace("ID", "id"))
    unclear = run(service, "import", str(tmp_path / f"in.{kind}"), "--table", table)
    assert (unclear.returncode, "has no column 'NAME'" in unclear.stderr) == (2, True)


def test_a_file_in_latin_1_is_reported_with_its_line_and_the_remedy(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    for create in (["--create"], []):
        for content, line in (("id,name\n1,a\n2,Müller\n", 3), ("id,größe\n1,2\n", 1)):
            (tmp_path / "in.csv").write_text(content, encoding="latin-1")
            done = run(service, "import", "in.csv", "--table", table, *create, cwd=tmp_path)
            assert (done.returncode, f"in.csv, line {line}: The byte 0xf" in done.stderr) == (1, True), done.stderr
            assert "iconv -f latin1 -t utf8" in done.stderr
        db.query(f"create table if not exists {table} (id int, name text)")


def test_an_ndjson_file_makes_its_table(service: Service, db: plainsql.Client, table: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "x": 0.5, "tags": ["a"], "doc": {"a": 1}, "none": None, "zip": "12345"},
        {"id": 2, "x": 1},
    ]
    (tmp_path / "in.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(service, "import", str(tmp_path / "in.ndjson"), "--table", table, "--create").returncode == 0
    assert columns_of(db, table) == {
        "id": "int8", "x": "numeric", "tags": "jsonb", "doc": "jsonb", "none": "text", "zip": "text",
    }  # fmt: skip
    assert db.query(f"select doc, tags from {table} where id = 1").one() == ({"a": 1}, ["a"])


def test_a_parquet_file_keeps_its_types(service: Service, db: plainsql.Client, table: str, tmp_path: Path) -> None:
    columns = {
        "code": (["1", "20"], pa.string(), "text"),
        "flag": (["true", None], pa.dictionary(pa.int8(), pa.string()), "text"),
        "day": (["2026-01-02", "2026-01-03"], pa.large_string(), "text"),
        "small": ([1, 2], pa.int16(), "smallint"),
        "unsigned": ([1, 2**64 - 1], pa.uint64(), "numeric(20,0)"),
        "price": ([Decimal("1.50"), None], pa.decimal128(10, 2), "numeric(10,2)"),
        "ratio": ([1.0, 2.0], pa.float64(), "double precision"),
        "at": (
            [dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), None],
            pa.timestamp("us", "UTC"),
            "timestamp with time zone",
        ),
        "raw": ([b"\x00", b""], pa.binary(), "bytea"),
        "tags": ([["1", "2"], []], pa.list_(pa.string()), "text[]"),
        "doc": ([{"a": 1}, None], pa.struct([("a", pa.int64())]), "jsonb"),
        "empty": ([None, None], pa.null(), "text"),
    }
    arrays = {name: pa.array(values, kind) for name, (values, kind, _) in columns.items()}
    pq.write_table(pa.table(arrays), tmp_path / "in.parquet")
    done = run(service, "import", str(tmp_path / "in.parquet"), "--table", table, "--create")
    assert done.returncode == 0, done.stderr
    sql = "select attname::text, format_type(atttypid, atttypmod) from pg_attribute where attrelid = $1::regclass"
    found = db.query(f"{sql} and attnum > 0 order by attnum", table)
    assert dict(found) == {name: kind for name, (_, _, kind) in columns.items()}
    rows = [tuple(row) for row in db.query(f"select * from {table} order by code")]
    assert rows == list(zip(*(values for values, _, _ in columns.values()), strict=True))


@pytest.mark.parametrize("size", [10, 100_000])
def test_columns_may_have_any_name(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, size: int
) -> None:
    """As one statement, and through a staging table, which numbers the rows."""
    rows = [{"row": at, "n": "x" * size, "ordinality": 7} for at in range(14)]
    csv = [",".join(map(str, each)) for each in (rows[0], *(row.values() for row in rows))]
    for name, lines in {"in.csv": csv, "in.ndjson": map(json.dumps, rows)}.items():
        (tmp_path / name).write_text("\n".join(lines))
        done = run(service, "import", str(tmp_path / name), "--table", table, "--create")
        assert done.returncode == 0, done.stderr
    found = db.query(f"select row, ordinality from {table} order by row")
    assert found.rows == [(at, 7) for at in range(14) for _ in range(2)]


def test_if_the_import_fails_the_new_table_is_gone(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    rows = "".join(f"{at},{'x' * 100}\n" for at in range(12_000))
    (tmp_path / "in.csv").write_text(f"id,name\n{rows}no number,x\n")
    done = run(service, "import", str(tmp_path / "in.csv"), "--table", table, "--create")
    assert (done.returncode, "line 12002, column 'id': invalid input syntax" in done.stderr) == (1, True)
    assert db.query("select to_regclass($1)", table).value() is None


def test_columns_that_a_primary_key_includes_are_updated(db: plainsql.Client, table: str, tmp_path: Path) -> None:
    db.query(f"create table {table} (a int, b int, primary key (a) include (b))")
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    arguments = ["import", str(tmp_path / "in.csv"), "--table", table, "--on-conflict", "update"]
    assert import_file(db, parse(arguments)) == 0
    assert db.insert_rows(table, [{"a": 1, "b": 3}], on_conflict="update") == 1
    assert db.query(f"select a, b from {table}").one() == (1, 3)


def test_a_name_that_postgresql_would_cut_is_refused_before_the_table_is_created(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text(f"id,{'ä' * 32}\n1,2\n")
    done = run(service, "import", "in.csv", "--table", table, "--create", cwd=tmp_path)
    assert (done.returncode, "at most 63 bytes" in done.stderr, "Created" in done.stderr) == (2, True, False)
    assert db.query("select to_regclass($1)", table).value() is None


def test_the_new_table_is_gone_if_anything_fails_after_its_creation(
    db: plainsql.Client, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("unreadable")

    monkeypatch.setattr(importing, "table_columns", fails)
    (tmp_path / "in.csv").write_text("id\n1\n")
    with pytest.raises(OSError, match="unreadable"):
        import_file(db, parse(["import", str(tmp_path / "in.csv"), "--table", table, "--create"]))
    assert f"Dropped table {table} again." in capsys.readouterr().err
    assert db.query("select to_regclass($1)", table).value() is None


def test_a_faulty_row_of_a_named_pipe_has_its_number(
    db: plainsql.Client, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe can't be read again."""
    pipe = tmp_path / "in.csv"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=["id,n\n1,2\n1,3\n"])
    writer.start()
    assert import_file(db, parse(["import", str(pipe), "--table", table, "--create", "--primary-key", "id"])) == 1
    writer.join()
    assert "in.csv, row 2: The key id=1 is already in row 1.\n" in capsys.readouterr().err


def test_an_import_succeeds_and_says_so_if_the_row_estimate_cannot_be_updated(
    db: plainsql.Client, table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importing, "_IS_LARGE_PART", "select $1::text is not null and $2::int > 0")
    _analyze(db, table, 100)
    assert capsys.readouterr().err == f'The row estimate was not updated: relation "{table}" does not exist.\n'

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(db, "query", interrupted)
        _analyze(db, table, 100)
    assert capsys.readouterr().err == "The row estimate was not updated: Interrupted.\n"


def test_a_new_table_with_rows_of_another_job_stays(
    db: plainsql.Client, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db.query(f"create table {table} as select 1 as id")
    _drop_if_empty(db, table)
    assert capsys.readouterr().err == f"Table {table} stays: there are rows in it.\n"
    db.query(f"delete from {table}")
    _drop_if_empty(db, table)
    assert db.query("select to_regclass($1)", table).value() is None


@pytest.mark.parametrize("size", [10, 100_000])
def test_rows_that_exist_are_skipped_updated_or_an_error(
    service: Service, db: plainsql.Client, table: str, tmp_path: Path, size: int
) -> None:
    """As one statement, and through a staging table."""
    db.query(f"create table {table} (id int primary key, name text)")
    db.query(f"insert into {table} values (1, 'old'), (2, 'old')")
    (tmp_path / "in.csv").write_text("id,name\n" + "".join(f"{at},{'x' * size}\n" for at in range(2, 16)))
    arguments = ["import", str(tmp_path / "in.csv"), "--table", table]
    counts = f"select count(*), count(*) filter (where name = 'old') from {table}"
    assert (run(service, *arguments).returncode, db.query(counts).one()) == (1, (2, 2))
    done = run(service, *arguments, "--on-conflict", "nothing")
    assert (done.returncode, db.query(counts).one()) == (0, (15, 2)), done.stderr
    done = run(service, *arguments, "--on-conflict", "update")
    assert (done.returncode, db.query(counts).one()) == (0, (15, 1)), done.stderr
    db.query(f"alter table {table} drop constraint {table}_pkey")
    refused = run(service, *arguments, "--on-conflict", "update")
    assert (refused.returncode, "needs the primary key" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], "text"), (["1", "-20"], "int8"), (["1", "2.5"], "numeric"), (["1", "1e5"], "float8"), (["007"], "text"),
        (["1234567890123456789012"], "numeric"), (["true", "false"], "bool"), (["true", "1"], "text"),
        (["2026-01-02"], "date"), (["2026-01-02", "2026-01-02T03:04"], "timestamp"), (["2026-13-01"], "text"),
        (["dd0ee244-fa0c-4a9d-8110-021df457eaf3"], "uuid"), ([{"a": 1}, "x"], "jsonb"), ([1, 2], "int8"),
        ([True], "bool"), (["+4930123456"], "text"), (["+1.5"], "text"), (["2026-W01-1"], "text"),
        (["2026-W01-1T03:04"], "text"), (["2026-01-02_03:04"], "text"), (["\u0661\u0662"], "text"),
    ],
)  # fmt: skip
def test_a_type_holds_every_value(values: list[Any], kind: str) -> None:
    assert type_of(values) == kind


def test_a_string_in_json_is_no_number() -> None:
    for text in ("1", "1.5", "1e5", "true", "NaN"):
        assert type_of([text], from_text=False) == "text"
    assert type_of(["1", 2], from_text=False) == "text"
    assert type_of(["2026-01-02"], from_text=False) == "date"
