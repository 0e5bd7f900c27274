"""Each line of the table in docs/modes.md, tried in each mode."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from plainsql import dbapi
from server.tests.service import Service

PAGE = Path(__file__).resolve().parents[2] / "docs/modes.md"
MODES: dict[str, dict[str, Any]] = {
    "transactions": {},
    "lazy": {"rehearse": "lazy"},
    "autocommit": {"autocommit": True},
}
_LINE = re.compile(r"^\| (.+?) \| (yes|no) \| (yes|no) \| (yes|no) \|$", re.MULTILINE)


class Tried:
    """A connection in a mode, a table with one row, and a connection that sees what is committed."""

    def __init__(self, connection: dbapi.Connection, other: dbapi.Connection, table: str) -> None:
        self.connection = connection
        self.other = other
        self.table = table

    def run(self, sql: str) -> dbapi.Cursor:
        return self.connection.cursor().execute(sql.replace("TABLE_", self.table))

    def value(self, sql: str) -> object:
        row = self.run(sql).fetchone()
        return None if row is None else row[0]

    def committed(self, sql: str) -> object:
        row = self.other.cursor().execute(sql.replace("TABLE_", self.table)).fetchone()
        return None if row is None else row[0]

    def roll_back(self) -> None:
        with suppress(dbapi.OperationalError):
            self.connection.rollback()


def sees_own_writes(tried: Tried) -> bool:
    tried.run("insert into TABLE_ (n) values (2)")
    return tried.value("select count(*) from TABLE_") == 2


def others_see_writes(tried: Tried) -> bool:
    tried.run("insert into TABLE_ (n) values (2)")
    return tried.committed("select count(*) from TABLE_") == 2


def rolls_back(tried: Tried) -> bool:
    tried.run("insert into TABLE_ (n) values (2)")
    tried.roll_back()
    tried.connection.commit()
    return tried.committed("select count(*) from TABLE_") == 1


def has_savepoints(tried: Tried) -> bool:
    for sql in ("savepoint s", "insert into TABLE_ (n) values (2)", "rollback to savepoint s"):
        tried.run(sql)
    tried.connection.commit()
    return tried.committed("select count(*) from TABLE_") == 1


def rolls_back_schema_changes(tried: Tried) -> bool:
    tried.run("alter table TABLE_ add extra int")
    tried.run("select extra from TABLE_")
    tried.roll_back()
    return tried.committed("select count(*) from pg_attribute where attrelid = 'TABLE_'::regclass and attnum > 0") == 2


def verifies_reads(tried: Tried) -> bool:
    tried.run("select sum(n) from TABLE_")
    tried.committed("update TABLE_ set n = 9 returning n")
    try:
        tried.run("insert into TABLE_ (n) values (2)")
        tried.connection.commit()
    except dbapi.OperationalError as error:
        return error.sqlstate == "40001"
    return False


def returns_ids(tried: Tried) -> bool:
    returned = tried.value("insert into TABLE_ (n) values (2) returning id")
    tried.connection.commit()
    return returned == tried.committed("select id from TABLE_ where n = 2")


def counts_rows(tried: Tried) -> bool:
    return tried.run("update TABLE_ set n = 5").rowcount == 1


def reports_constraints_at_once(tried: Tried) -> bool:
    try:
        tried.run("insert into TABLE_ (n) values (1)")
    except dbapi.IntegrityError:
        return True
    with pytest.raises(dbapi.IntegrityError, match="insert into"):
        tried.connection.commit()
    return False


def reports_schema_errors_at_once(tried: Tried) -> bool:
    try:
        tried.run("alter table nowhere add n int")
    except dbapi.ProgrammingError:
        return True
    with pytest.raises(dbapi.ProgrammingError, match="failed statement: alter table nowhere"):
        tried.run("select n from TABLE_")
    return False


def goes_on_after_an_error(tried: Tried) -> bool:
    with pytest.raises(dbapi.ProgrammingError):
        tried.run("select nothing from TABLE_")
    return tried.value("select 1") == 1


def upserts_with_new_ids(tried: Tried) -> bool:
    tried.run("insert into TABLE_ (n) values (2) on conflict (n) do update set n = 3 returning id")
    tried.connection.commit()
    return True


def reads_at_random(tried: Tried) -> bool:
    tried.run("select n, random() from TABLE_")
    tried.run("insert into TABLE_ (n) values (2)")
    tried.connection.commit()
    return True


def vacuums(tried: Tried) -> bool:
    tried.run("vacuum TABLE_")
    tried.run("create index concurrently on TABLE_ (n)")
    tried.connection.commit()
    return True


def keeps_settings(tried: Tried) -> bool:
    tried.run("set local work_mem = '7MB'")
    return tried.value("select current_setting('work_mem')") == "7MB"


def keeps_temporary_tables(tried: Tried) -> bool:
    tried.run("create temporary table passing (n int) on commit drop")
    tried.run("insert into passing values (4)")
    return tried.value("select n from passing") == 4


def streams(tried: Tried) -> bool:
    cursor = tried.connection.cursor().stream("select g from generate_series(1, 100001) g")
    return sum(1 for _ in cursor) == 100_001


def streams_after_a_write(tried: Tried) -> bool:
    tried.run("insert into TABLE_ (n) values (2)")
    return streams(tried)


def inserts_any_number(tried: Tried) -> bool:
    # 18 MiB, where a request may have 16.
    rows = [[number, "x" * (1 << 20)] for number in range(2, 20)]
    tried.run("alter table TABLE_ add body text")
    tried.connection.cursor().executemany(f"insert into {tried.table} (n, body) values (%s, %s)", rows)
    tried.connection.commit()
    return tried.committed("select count(*) from TABLE_") == 19


def locks_rows(tried: Tried) -> bool:
    tried.run("select n from TABLE_ for update")
    with suppress(dbapi.OperationalError):
        return tried.committed("select n from TABLE_ for update nowait") != 1
    return True


def knows_the_last_number(tried: Tried) -> bool:
    tried.run("insert into TABLE_ (n) values (2)")
    tried.run("select n from TABLE_")
    return isinstance(tried.value("select lastval()"), int)


def listens(tried: Tried) -> bool:
    for sql in ("listen news", "copy TABLE_ to stdout", "prepare transaction 'x'"):
        try:
            tried.run(sql)
            tried.connection.commit()
        except dbapi.DatabaseError:
            tried.roll_back()
        else:
            return True
    return False


# In the order of the page.
PROBES: list[Callable[[Tried], bool]] = [
    sees_own_writes, others_see_writes, rolls_back, has_savepoints, rolls_back_schema_changes, verifies_reads,
    returns_ids, counts_rows, reports_constraints_at_once, reports_schema_errors_at_once, goes_on_after_an_error,
    upserts_with_new_ids, reads_at_random, vacuums, keeps_settings, keeps_temporary_tables, streams,
    streams_after_a_write, inserts_any_number, locks_rows, knows_the_last_number, listens,
]  # fmt: skip


Connect = Callable[..., dbapi.Connection]


@pytest.fixture(scope="module")
def connect(service: Service) -> Connect:
    """Connects to a database of its own, in a tier whose requests are small enough to exceed their size."""
    organization = f"modes{uuid4().hex[:8]}"
    service.customers.add_organization(organization, tier="standard")
    service.customers.add_database("main", organization)
    key = service.new_key("read", "write", org=organization)
    return partial(dbapi.connect, service.data_url, key, ca_file=service.dev["ca_file"])


@pytest.fixture(scope="module")
def other(connect: Connect) -> Iterator[dbapi.Connection]:
    with connect(autocommit=True) as made:
        yield made


@pytest.mark.parametrize("mode", MODES)
def test_what_the_page_says_about_a_mode_is_so(connect: Connect, other: dbapi.Connection, mode: str) -> None:
    lines = _LINE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(lines) == len(PROBES)
    column = 1 + list(MODES).index(mode)
    documented = {line[0]: line[column] == "yes" for line in lines}
    found = {}
    for line, probe in zip(lines, PROBES, strict=True):
        with closing(connect(**MODES[mode])) as connection:
            found[line[0]] = works(connection, other, probe)
    assert found == documented


def works(connection: dbapi.Connection, other: dbapi.Connection, probe: Callable[[Tried], bool]) -> bool:
    """Whether it works. An error that the probe does not expect is a no."""
    table = f"modes_{uuid4().hex[:8]}"
    cursor = other.cursor()
    cursor.execute(f"create table {table} (id int generated always as identity, n int unique)")
    cursor.execute(f"insert into {table} (n) values (1)")
    try:
        return probe(Tried(connection, other, table))
    except dbapi.DatabaseError as error:
        print(f"{probe.__name__}: {error}")
        return False
    finally:
        cursor.execute(f"drop table {table}")
