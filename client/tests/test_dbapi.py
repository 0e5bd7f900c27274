"""DB-API 2.0, case by case as PEP 249 has it, and its two modes: transactions, and autocommit."""

import datetime as dt
from collections.abc import Iterator
from typing import Any, Literal
from uuid import uuid4

import pytest

from client.tests.requests_made import requests_made
from client.tests.scripted import hang_up, scripted
from plainsql import dbapi
from server.tests.service import Service


def connect(
    service: Service, *, autocommit: bool = False, rehearse: Literal["eager", "lazy"] = "eager"
) -> dbapi.Connection:
    ca_file = service.dev["ca_file"]
    return dbapi.connect(service.data_url, service.api_key, ca_file=ca_file, autocommit=autocommit, rehearse=rehearse)


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
        ("release x", dbapi.NotSupportedError),
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


def test_a_transaction_reads_its_own_writes_and_others_see_them_at_the_commit(service: Service, booze: str) -> None:
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute(f"insert into {booze} values (%s) returning name", ["kept"])
        assert (cursor.fetchone(), cursor.rowcount) == (("kept",), 1)
        assert (connection.kept_writes, service.value(f"select count(*) from {booze}")) == (1, 0)
        assert cursor.execute(f"select * from {booze}").fetchall() == [("kept",)]
        assert cursor.execute(f"update {booze} set name = 'x' where name = 'other'").rowcount == 0
        connection.commit()
        assert service.value(f"select count(*) from {booze}") == 1
        cursor.execute(f"delete from {booze}")
        assert cursor.rowcount == 1
        connection.rollback()
        connection.commit()
        assert service.value(f"select count(*) from {booze}") == 1


def test_after_an_error_a_transaction_must_be_rolled_back(service: Service, booze: str) -> None:
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute(f"insert into {booze} values ('a')")
        with pytest.raises(dbapi.DataError):
            cursor.execute(f"insert into {booze} values (repeat('x', 99))")
        for work in (lambda: cursor.execute("select 1"), connection.commit):
            with pytest.raises(dbapi.InternalError, match=r"Call rollback\(\) first") as caught:
                work()
            assert (caught.value.sqlstate, caught.value.code) == ("25P02", "in_failed_sql_transaction")
        connection.rollback()
        assert cursor.execute(f"select count(*) from {booze}").fetchone() == (0,)


def test_a_read_with_an_invalid_parameter_is_not_sent_and_the_transaction_goes_on(service: Service, booze: str) -> None:
    """pandas tries whether a statement is the name of a table, and goes on."""
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute(f"insert into {booze} values ('a')")
        with pytest.raises(dbapi.ProgrammingError, match="Unsupported parameter type"):
            cursor.execute(f"select * from {booze} where name = %s", [object()])
        assert cursor.execute(f"select * from {booze}").fetchall() == [("a",)]
        with pytest.raises(dbapi.ProgrammingError, match="Unsupported parameter type"):
            cursor.execute(f"insert into {booze} values (%s)", [object()])
        with pytest.raises(dbapi.InternalError, match=r"Call rollback\(\) first"):
            connection.commit()
        connection.rollback()


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_closed_cursor_keeps_its_row_count(service: Service, booze: str, *, autocommit: bool) -> None:
    with connect(service, autocommit=autocommit) as connection:
        cursor = connection.cursor()
        cursor.executemany(f"insert into {booze} values (%s)", [["a"], ["b"]])
        cursor.close()
        assert cursor.rowcount == 2
        cursor = connection.cursor()
        cursor.executemany(f"insert into {booze} values (%s)", [["c"]] * 1000)
        cursor.close()
        # In a transaction, so many rows wait for the commit. A closed cursor does not ask for them.
        assert cursor.rowcount == (1000 if autocommit else -1)
        connection.commit()
        assert cursor.rowcount == 1000


def test_savepoints_work(service: Service, booze: str) -> None:
    with connect(service) as connection:
        cursor = connection.cursor()
        cursor.execute(f"insert into {booze} values ('a')")
        cursor.execute("savepoint s")
        with pytest.raises(dbapi.DataError):
            cursor.execute(f"insert into {booze} values (repeat('x', 99))")
        cursor.execute("rollback to savepoint s")
        cursor.execute(f"insert into {booze} values ('b')")
        cursor.execute("release savepoint s")
        with pytest.raises(dbapi.InternalError, match="doesn't exist"):
            cursor.execute("rollback to savepoint s")
        connection.rollback()
        cursor.execute(f"insert into {booze} values ('c')")
    assert service.value(f"select string_agg(name, '') from {booze}") == "c"


def test_many_sets_of_parameters_are_rehearsed_together(service: Service, booze: str) -> None:
    with connect(service) as connection, requests_made() as requests:
        cursor = connection.cursor()
        cursor.executemany(f"insert into {booze} values (%s)", [[name] for name in SAMPLES])
        assert (cursor.rowcount, len(requests)) == (4, 1)
        cursor.executemany(f"update {booze} set name = %s where name = %s", [["a", "XXXX"], ["b", "nothing"]])
        assert (cursor.rowcount, len(requests)) == (1, 2)
        cursor.executemany(f"insert into {booze} values (%s)", [["c"], ["d"]])
        connection.commit()
        assert (cursor.rowcount, len(requests)) == (2, 4)
    assert service.value(f"select count(*) from {booze}") == 6


def test_lazy_writes_cost_no_request_until_they_are_needed(service: Service, booze: str) -> None:
    with connect(service, rehearse="lazy") as connection, requests_made() as requests:
        cursor, other = connection.cursor(), connection.cursor()
        cursor.execute(f"insert into {booze} values ('a')")
        other.execute(f"update {booze} set name = 'b'")
        assert (len(requests), connection.kept_writes) == (0, 2)
        assert (other.rowcount, len(requests)) == (1, 1)
        assert (cursor.rowcount, len(requests)) == (1, 1)
        cursor.execute(f"delete from {booze} where name = 'z'")
        connection.commit()
        assert (cursor.rowcount, len(requests)) == (0, 2)
        with pytest.raises(dbapi.DataError):
            cursor.execute(f"insert into {booze} values (repeat('x', 99))").connection.commit()
    assert service.value(f"select name from {booze}") == "b"


def test_the_mode_cannot_change_within_a_transaction(service: Service, booze: str) -> None:
    with connect(service) as connection:
        connection.cursor().execute(f"select * from {booze}")
        connection.autocommit = True
        connection.autocommit = False
        connection.cursor().execute(f"insert into {booze} values ('a')")
        with pytest.raises(dbapi.InterfaceError, match="in progress"):
            connection.autocommit = True
    with pytest.raises(dbapi.InterfaceError, match="rehearse must be"):
        connect(service, rehearse="never")  # type: ignore[arg-type]  # no such choice


def test_a_changed_read_fails_the_commit(service: Service, booze: str) -> None:
    with connect(service) as connection:
        cursor = connection.cursor()
        assert cursor.execute(f"select count(*) from {booze}").fetchone() == (0,)
        cursor.execute(f"insert into {booze} values ('mine')")
        service.query(f"insert into {booze} values ('theirs')")
        with pytest.raises(dbapi.OperationalError) as caught:
            connection.commit()
        assert (caught.value.sqlstate, caught.value.outcome) == ("40001", "rolled_back")
        assert cursor.execute(f"select name from {booze}").fetchall() == [("theirs",)]


def test_a_rollback_after_a_write_raises_in_autocommit(service: Service, booze: str) -> None:
    with connect(service, autocommit=True) as connection:
        connection.rollback()
        connection.cursor().execute(f"insert into {booze} values ('done')")
        with pytest.raises(dbapi.OperationalError, match="1 write was committed at once"):
            connection.rollback()
        connection.cursor().execute(f"insert into {booze} values ('done')")
        connection.commit()
        connection.rollback()
    assert service.value(f"select count(*) from {booze}") == 2


def test_a_select_that_writes_is_rolled_back_but_sequences_count_on(service: Service, booze: str) -> None:
    service.query(f"create sequence seq_{booze}")
    service.query(
        f"create function f_{booze}() returns int language sql as $$ insert into {booze} values ('x'); select 1 $$"
    )
    with connect(service) as connection:
        cursor = connection.cursor()
        assert cursor.execute(f"select nextval('seq_{booze}')").fetchone() == (1,)
        assert cursor.execute(f"select f_{booze}()").fetchone() == (1,)
        assert cursor.execute(f"select count(*) from {booze}").fetchone() == (1,)
        connection.rollback()
        assert cursor.execute(f"select nextval('seq_{booze}')").fetchone() == (2,)
        assert cursor.execute(f"select count(*) from {booze}").fetchone() == (0,)
        cursor.execute(f"select f_{booze}()")
        connection.commit()
    service.query(f"drop function f_{booze}()")
    service.query(f"drop sequence seq_{booze}")
    assert service.value(f"select count(*) from {booze}") == 1


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


def test_a_stream_in_a_transaction_sees_its_writes_and_may_write_itself(service: Service, booze: str) -> None:
    with connect(service) as connection:
        cursor = connection.cursor()
        assert cursor.stream(f"select * from {booze}").fetchall() == []
        assert cursor.stream(f"insert into {booze} values ('x') returning name").fetchall() == [("x",)]
        assert cursor.stream(f"select name from {booze}").fetchall() == [("x",)]
        sql = f"with gone as (delete from {booze} returning 1) select count(*) from gone"
        assert cursor.stream(sql).fetchall() == [(1,)]
        connection.rollback()
        assert cursor.stream(f"select name from {booze} for update").fetchall() == []
    assert service.value(f"select count(*) from {booze}") == 0


def test_an_error_reports_its_outcome() -> None:
    with scripted(hang_up) as (url, _):
        connection = dbapi.connect(url, "svc_k_x", timeout_s=0.2, rehearse="lazy")
        connection.cursor().execute("insert into t values (1)")
        with pytest.raises(dbapi.OperationalError) as caught:
            connection.commit()
    assert caught.value.outcome == "unknown"
    assert getattr(caught.value.__cause__, "idempotency_key", None)
