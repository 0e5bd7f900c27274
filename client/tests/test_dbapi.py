"""DB-API 2.0, case by case as PEP 249 has it, and the two modes that the lack of interactive transactions makes."""

import datetime as dt
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from client.tests.scripted import hang_up, scripted
from plainsql import dbapi
from server.tests.service import Service


def connect(service: Service, *, autocommit: bool = False) -> dbapi.Connection:
    return dbapi.connect(service.data_url, service.api_key, ca_file=service.dev["ca_file"], autocommit=autocommit)


@pytest.fixture
def connection(service: Service) -> Iterator[dbapi.Connection]:
    made = connect(service, autocommit=True)
    yield made
    made.commit()
    made.close()


@pytest.fixture
def booze(connection: dbapi.Connection) -> Iterator[str]:
    name = f"booze_{uuid4().hex[:8]}"
    connection.cursor().execute(f"create table {name} (name varchar(20))")
    yield name
    connection.cursor().execute(f"drop table {name}")


SAMPLES = ["Carlton Cold", "Mountain Goat", "Redback", "XXXX"]


def test_the_module_has_the_globals() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "pyformat")
    for name in ("Warning", "InterfaceError", "DataError", "OperationalError", "IntegrityError", "InternalError"):
        assert issubclass(getattr(dbapi, name), Exception)
    assert issubclass(dbapi.ProgrammingError, dbapi.DatabaseError)
    assert issubclass(dbapi.DatabaseError, dbapi.Error)
    assert not issubclass(dbapi.InterfaceError, dbapi.DatabaseError)


def test_the_constructors_return_the_documented_types() -> None:
    assert dbapi.Date(2002, 12, 25) == dt.date(2002, 12, 25)
    assert dbapi.Time(13, 45, 30) == dt.time(13, 45, 30)
    assert dbapi.Timestamp(2002, 12, 25, 13, 45, 30) == dt.datetime(2002, 12, 25, 13, 45, 30)  # noqa: DTZ001
    now = dt.datetime.now().replace(microsecond=0)  # noqa: DTZ005  # PEP 249's ticks are local
    assert dbapi.DateFromTicks(now.timestamp()) == now.date()
    assert dbapi.TimeFromTicks(now.timestamp()) == now.time()
    assert dbapi.TimestampFromTicks(now.timestamp()) == now
    assert dbapi.Binary(b"x") == b"x"


def test_the_optional_methods_that_are_not_there_can_be_asked_for_and_call_is_a_statement(
    connection: dbapi.Connection, booze: str
) -> None:
    cursor = connection.cursor()
    # PEP 249 prefers no method to one that always raises.
    assert [hasattr(cursor, name) for name in ("callproc", "nextset")] == [False, False]
    cursor.execute(f"create procedure add_{booze}(it text) language sql as 'insert into {booze} values (it)'")
    cursor.execute(f"call add_{booze}(%s)", ["x"])
    assert cursor.execute(f"select * from {booze}").fetchall() == [("x",)]
    cursor.execute(f"drop procedure add_{booze}")


def test_a_description_has_seven_fields_and_type_codes_compare(connection: dbapi.Connection, booze: str) -> None:
    cursor = connection.cursor()
    cursor.execute(f"insert into {booze} values ('x')")
    assert cursor.description is None
    cursor.execute(f"select name, 1 as n, now() as t, '\\x00'::bytea as b from {booze}")
    described: list[Any] = [*(cursor.description or ())]  # type: ignore[redundant-expr]
    assert [len(each) for each in described] == [7] * 4
    codes = [each[1] for each in described]
    assert codes == [dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME, dbapi.BINARY]
    assert codes[0] != dbapi.NUMBER


def test_row_counts_are_reported(connection: dbapi.Connection, booze: str) -> None:
    cursor = connection.cursor()
    assert cursor.rowcount == -1
    cursor.execute(f"insert into {booze} values ('x'), ('y')")
    assert cursor.rowcount == 2
    cursor.execute(f"select * from {booze}")
    assert cursor.rowcount == 2
    cursor.execute(f"create table if not exists {booze} (name text)")
    assert cursor.rowcount == -1


def test_parameters_are_passed_by_position_and_by_name(connection: dbapi.Connection, booze: str) -> None:
    cursor = connection.cursor()
    cursor.execute(f"insert into {booze} values (%s)", ["Cooper's"])
    cursor.execute(f"insert into {booze} values (%(beer)s)", {"beer": "Victoria Bitter"})
    cursor.executemany(f"insert into {booze} values (%s)", [[name] for name in SAMPLES])
    assert cursor.rowcount == 4
    cursor.execute(f"select name from {booze} where name like %s and name like '%%''%%' order by 1", ["C%"])
    assert cursor.fetchall() == [("Cooper's",)]
    with pytest.raises(dbapi.ProgrammingError, match="has 1 placeholders, but got 2 parameters"):
        cursor.execute("select %s", [1, 2])


def test_rows_are_fetched_one_by_one_in_groups_and_all_at_once(connection: dbapi.Connection, booze: str) -> None:
    cursor = connection.cursor()
    with pytest.raises(dbapi.Error):
        cursor.fetchone()
    cursor.executemany(f"insert into {booze} values (%s)", [[name] for name in SAMPLES])
    with pytest.raises(dbapi.Error):
        cursor.fetchall()
    cursor.execute(f"select name from {booze} order by name")
    assert cursor.fetchone() == (SAMPLES[0],)
    assert (len(cursor.fetchmany()), len(cursor.fetchmany(2)), cursor.fetchmany(5)) == (1, 2, [])
    assert cursor.fetchone() is None
    cursor.execute(f"select name from {booze} order by name")
    cursor.arraysize = 3
    assert [row[0] for row in cursor.fetchmany()] == SAMPLES[:3]
    assert [row[0] for row in cursor] == SAMPLES[3:]
    assert cursor.fetchall() == []
    cursor.setinputsizes([25])
    cursor.setoutputsize(1000, 0)


def test_a_closed_cursor_or_connection_raises(service: Service) -> None:
    connection = connect(service)
    cursor = connection.cursor()
    cursor.close()
    with pytest.raises(dbapi.Error):
        cursor.execute("select 1")
    connection.close()
    for work in (connection.commit, connection.rollback, connection.cursor, connection.close):
        with pytest.raises(dbapi.InterfaceError):
            work()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("selekt", dbapi.ProgrammingError),
        ("select * from nowhere", dbapi.ProgrammingError),
        ("select 1 / 0", dbapi.DataError),
        ("insert into {booze} values (repeat('x', 21))", dbapi.DataError),
        ("alter table {booze} alter name set not null", None),
        ("insert into {booze} values (null)", dbapi.IntegrityError),
        ("savepoint x", dbapi.NotSupportedError),
    ],
)
def test_errors_have_pep_249_s_classes(
    connection: dbapi.Connection, booze: str, sql: str, kind: type[Exception] | None
) -> None:
    cursor = connection.cursor()
    cursor.execute(f"alter table {booze} alter name set not null")
    if kind is None:
        cursor.execute(sql.format(booze=booze))
    else:
        with pytest.raises(kind):
            cursor.execute(sql.format(booze=booze))


def test_buffered_writes_are_sent_at_commit_and_discarded_by_rollback(service: Service, booze: str) -> None:
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute(f"insert into {booze} values (%s) returning name", ["kept"])
        assert (connection.kept_writes, service.value(f"select count(*) from {booze}")) == (1, 0)
        with pytest.raises(dbapi.ProgrammingError, match="buffered until commit"):
            cursor.fetchone()
        with pytest.raises(dbapi.OperationalError, match="would not see the"):
            connection.cursor().execute(f"select * from {booze}")
        connection.commit()
        assert cursor.fetchone() == ("kept",)
        connection.cursor().execute(f"delete from {booze}")
        connection.rollback()
        connection.commit()
        assert service.value(f"select count(*) from {booze}") == 1


def test_a_buffered_transaction_is_atomic(service: Service, booze: str) -> None:
    with connect(service) as connection:
        connection.cursor().execute(f"insert into {booze} values ('a')")
        connection.cursor().execute(f"insert into {booze} values (repeat('x', 99))")
        with pytest.raises(dbapi.DataError):
            connection.commit()
        assert (connection.kept_writes, service.value(f"select count(*) from {booze}")) == (0, 0)


def test_a_rollback_after_a_write_raises_in_autocommit(service: Service, booze: str) -> None:
    with connect(service, autocommit=True) as connection:
        connection.rollback()
        connection.cursor().execute(f"insert into {booze} values ('done')")
        with pytest.raises(dbapi.OperationalError, match="were committed at once"):
            connection.rollback()
        connection.cursor().execute(f"insert into {booze} values ('done')")
        connection.commit()
        connection.rollback()
    assert service.value(f"select count(*) from {booze}") == 2


def test_a_select_that_writes_is_refused_in_buffered_mode_but_sequences_count(service: Service, booze: str) -> None:
    service.query(f"create sequence seq_{booze}")
    service.query(
        f"create function f_{booze}() returns int language sql as $$ insert into {booze} values ('x'); select 1 $$"
    )
    with connect(service) as connection:
        cursor = connection.cursor()
        assert cursor.execute(f"select nextval('seq_{booze}')").fetchone() == (1,)
        with pytest.raises(dbapi.InternalError, match="read-only"):
            cursor.execute(f"select f_{booze}()")
    service.query(f"drop function f_{booze}()")
    service.query(f"drop sequence seq_{booze}")
    assert service.value(f"select count(*) from {booze}") == 0


def test_a_large_result_is_streamed(connection: dbapi.Connection) -> None:
    cursor = connection.cursor().stream("select g from generate_series(1, 150000) g")
    assert sum(row[0] for row in cursor) == 150_000 * 150_001 // 2
    with pytest.raises(dbapi.DataError, match="use stream"):
        connection.cursor().execute("select generate_series(1, 150000)")


def test_a_write_within_a_read_is_known_to_rollback_in_autocommit(service: Service, booze: str) -> None:
    for number, run in enumerate(("execute", "stream")):
        with connect(service, autocommit=True) as connection:
            cursor = connection.cursor()
            sql = f"with new as (insert into {booze} values ('x') returning 1) select count(*) from new"
            assert getattr(cursor, run)(sql).fetchall() == [(1,)]
            with pytest.raises(dbapi.OperationalError, match="cannot be rolled back"):
                connection.rollback()
        assert service.value(f"select count(*) from {booze}") == number + 1


def test_a_stream_does_not_write_in_buffered_mode(service: Service, booze: str) -> None:
    with connect(service) as connection:
        with pytest.raises(dbapi.InternalError, match="read-only"):
            connection.cursor().stream(f"insert into {booze} values ('x') returning name")
        with pytest.raises(dbapi.InternalError, match="read-only"):
            connection.cursor().stream(f"with new as (delete from {booze} returning 1) select 1 from new")
    assert service.value(f"select count(*) from {booze}") == 0


def test_an_error_reports_its_outcome() -> None:
    with scripted(hang_up) as (url, _):
        connection = dbapi.connect(url, "svc_k_x", timeout_s=0.2)
        connection.cursor().execute("insert into t values (1)")
        with pytest.raises(dbapi.OperationalError) as caught:
            connection.commit()
    assert caught.value.outcome == "unknown"
    assert getattr(caught.value.__cause__, "idempotency_key", None)
