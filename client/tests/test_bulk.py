"""Many rows: `executemany`, `insert_rows`, `insert_frame` and pandas, in few requests, and every value as it was."""

import asyncio
import datetime as dt
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sqlalchemy as sa

import plainsql
from client.tests.requests_made import requests_made
from client.tests.test_dbapi import connect
from client.tests.test_sqlalchemy import address
from plainsql import dbapi
from server.tests.service import Service

COLUMNS = ("id", "price", "raw", "at", "key", "doc", "name")
TYPES = "id int primary key, price numeric, raw bytea, at timestamptz, key uuid, doc jsonb, name text"
ROWS = 3_000


@pytest.fixture
def table(db: plainsql.Client) -> Iterator[str]:
    name = f"bulk_{uuid4().hex[:8]}"
    db.query(f"create table {name} ({TYPES})")
    yield name
    db.query(f"drop table {name}")


def row(at: int) -> tuple[Any, ...]:
    """A row whose values are easily changed by a careless conversion. Each third one is NULL."""
    if at % 3 == 2:
        return at, None, None, None, None, None, None
    time = dt.datetime(2026, 1, 1, 2, 3, 4, 567891, dt.UTC) + dt.timedelta(seconds=at)
    doc = {"a": [at, 15, None], "b": "ä"}
    return at, Decimal(f"{at}.10"), bytes([at % 256, 0, 92]), time, UUID(int=at), doc, f'na"me\\ {at}'


def stored(db: plainsql.Client, table: str) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in db.query(f"select * from {table} order by id")]


def few(count: int) -> list[tuple[Any, ...]]:
    return [row(at) for at in range(count)]


@pytest.mark.parametrize("options", [{}, {"rehearse": "lazy"}, {"autocommit": True}])
def test_executemany_sends_any_number_of_rows_in_few_requests(
    service: Service, db: plainsql.Client, table: str, options: dict[str, Any]
) -> None:
    connection = connect(service, **options)
    with requests_made() as made:
        cursor = connection.cursor()
        cursor.executemany(f"insert into {table} values ({', '.join(['%s'] * 7)})", few(ROWS))
        connection.commit()
    assert (len(made), cursor.rowcount) == (1, ROWS)
    named = f"insert into {table} (id, name) values (%(id)s, upper(%(name)s))"
    cursor.executemany(named, [{"id": ROWS + at, "name": "x"} for at in range(20)])
    connection.commit()
    connection.close()
    found = stored(db, table)
    assert found[:ROWS] == few(ROWS)
    assert [each[-1] for each in found[ROWS:]] == ["X"] * 20


def test_a_free_tier_takes_many_rows_too(service: Service) -> None:
    """Its transactions have at most 100 statements, and its requests 4 MiB."""
    organization = f"free{uuid4().hex[:8]}"
    service.customers.add_organization(organization, tier="free")
    service.customers.add_database(organization, organization)
    key = service.new_key("read", "write", "admin", org=organization)
    options: dict[str, Any] = {"database": organization, "ca_file": service.dev["ca_file"]}
    with plainsql.connect(service.data_url, key, **options) as db:
        db.query("create table t (id int, name text)")
        with dbapi.connect(service.data_url, key, **options) as connection:
            connection.cursor().executemany("insert into t values (%s, %s)", [(at, "x") for at in range(2_000)])
        with dbapi.connect(service.data_url, key, autocommit=True, **options) as connection, requests_made() as made:
            cursor = connection.cursor()
            cursor.executemany("update t set name = %s where id = %s", [("y", at) for at in range(250)])
            assert cursor.rowcount == 250
        # Two that were too large, and then 100 statements at a time.
        assert len(made) == 5
        assert db.query("select count(*), count(*) filter (where name = 'y') from t").one() == (2_000, 250)
        # More than fits one request.
        assert db.insert_rows("t", ({"id": -1, "name": "z" * 50_000} for _ in range(100))) == 100
        assert db.query("select sum(length(name)) from t where id = -1").value() == 5_000_000


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_folded_upsert_meets_a_row_twice_as_single_ones_do(
    service: Service, db: plainsql.Client, table: str, *, autocommit: bool
) -> None:
    sql = f"insert into {table} (id, name) values (%s, %s) on conflict (id) do update set name = excluded.name"
    with connect(service, autocommit=autocommit) as connection:
        connection.cursor().executemany(sql, [(1, "first"), (2, "x"), (1, "last")])
    assert [(each[0], each[-1]) for each in stored(db, table)] == [(1, "last"), (2, "x")]


def test_in_autocommit_an_error_says_what_is_committed(service: Service, db: plainsql.Client, table: str) -> None:
    rows = [(at, "x" * 300_000) for at in [*range(12), 0]]
    sql = f"insert into {table} (id, name) values (%s, lower(%s)) returning id"
    with connect(service, autocommit=True) as connection, pytest.raises(dbapi.IntegrityError) as caught:
        connection.cursor().executemany(sql, rows)
    committed = len(stored(db, table))
    assert 0 < committed < 13
    assert caught.value.__notes__ == [f"The statements before this one are committed: {committed} rows."]


def test_a_bulk_insert_that_waits_fails_at_the_commit_and_leaves_nothing(
    service: Service, db: plainsql.Client, table: str
) -> None:
    connection = connect(service)
    connection.cursor().executemany(f"insert into {table} (id) values (%s)", [[at % 1_999] for at in range(2_000)])
    with pytest.raises(dbapi.IntegrityError):
        connection.commit()
    connection.close()
    assert stored(db, table) == []


def test_a_commit_names_the_error_that_a_library_hides(service: Service) -> None:
    """As pandas does: it commits after an error, and shows only what the commit raises."""
    connection = connect(service)
    with pytest.raises(dbapi.ProgrammingError):
        connection.cursor().execute("select * from hidden_table")
    with pytest.raises(dbapi.InternalError, match='relation "hidden_table" does not exist'):
        connection.commit()
    connection.close()


Insert = Callable[[plainsql.Client, str, list[tuple[Any, ...]]], Any]


def with_asyncio(db: plainsql.Client, table: str, rows: list[tuple[Any, ...]]) -> Any:
    async def work() -> int:
        async with plainsql.AsyncClient(db.settings) as client:
            return await client.insert_rows(table, rows, columns=COLUMNS)

    return asyncio.run(work())


def with_pandas(db: plainsql.Client, table: str, rows: list[tuple[Any, ...]]) -> Any:
    frame = pd.DataFrame(rows, columns=COLUMNS)
    # Absent values of three kinds: NaT, NA and None.
    frame["at"] = pd.to_datetime(frame["at"])
    frame["name"] = frame["name"].astype("string")
    return db.insert_frame(table, frame)


def with_polars(db: plainsql.Client, table: str, rows: list[tuple[Any, ...]]) -> Any:
    return db.insert_frame(table, pl.DataFrame(_by_column(rows), strict=False))


def with_arrow(db: plainsql.Client, table: str, rows: list[tuple[Any, ...]]) -> Any:
    return db.insert_frame(table, pa.table(_by_column(rows)))


def _by_column(rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Neither library has a type for UUIDs; a struct becomes a JSON object."""
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return {**columns, "key": [None if each is None else str(each) for each in columns["key"]]}


def with_dictionaries(db: plainsql.Client, table: str, rows: list[tuple[Any, ...]]) -> Any:
    return db.insert_rows(table, (dict(zip(COLUMNS, each, strict=True)) for each in rows))


@pytest.mark.parametrize("insert", [with_dictionaries, with_asyncio, with_pandas, with_polars, with_arrow])
def test_rows_and_frames_are_inserted_as_they_are(db: plainsql.Client, table: str, insert: Insert) -> None:
    with requests_made() as made:
        assert insert(db, table, few(30)) == 30
    assert len(made) <= 2
    assert stored(db, table) == few(30)


def test_more_rows_than_fit_a_request_are_inserted_whole_or_not_at_all(db: plainsql.Client, table: str) -> None:
    rows = [{"id": at, "name": "x" * 100_000} for at in range(40)]
    with requests_made() as made, pytest.raises(plainsql.StatementError):
        db.insert_rows(table, [*rows, {"id": 0, "name": "again"}])
    assert stored(db, table) == []
    assert db.insert_rows(table, iter(rows)) == 40
    assert len(made) < 15
    assert [each[0] for each in stored(db, table)] == list(range(40))
    left = "select count(*) from pg_class where relname like 'plainsql_import%'"
    assert db.query(left).value() == 0


def test_rows_that_exist_are_skipped_or_updated(db: plainsql.Client, table: str) -> None:
    old = [{"id": at, "name": "old"} for at in (1, 2)]
    new = [{"id": at, "name": "new"} for at in (2, 3)]
    assert db.insert_rows(table, old) == 2
    assert db.insert_rows(table, new, on_conflict="nothing") == 1
    assert [(each[0], each[-1]) for each in stored(db, table)] == [(1, "old"), (2, "old"), (3, "new")]
    assert db.insert_rows(table, new, on_conflict="update") == 2
    assert [(each[0], each[-1]) for each in stored(db, table)] == [(1, "old"), (2, "new"), (3, "new")]
    with pytest.raises(ValueError, match="lack 'id'"):
        db.insert_rows(table, [{"name": "x"}], on_conflict="update")
    with pytest.raises(ValueError, match="Row 2 lacks the column 'name'"):
        db.insert_rows(table, [{"id": 7, "name": "x"}, {"id": 8}])
    assert db.insert_rows(table, []) == 0


def test_pandas_reads_with_both_placeholders_and_writes_many_rows_in_few_requests(service: Service) -> None:
    name = f"frame{uuid4().hex[:8]}"
    service.customers.add_database(name)
    engine = sa.create_engine(f"plainsql://{address(service, name)}")
    frame = pd.DataFrame({"id": range(5_000), "x": 0.5, "at": pd.Timestamp("2026-01-01", tz="UTC"), "name": "it's 50%"})
    frame.to_sql("first", engine, index=False)
    with requests_made() as made:
        frame.to_sql("second", engine, index=False, chunksize=1_000)
    assert made.count("/v1/transaction") <= 3
    with engine.connect() as connection:
        for where, params in (("id < %s and name like '%%50%%'", (3,)), ("id < %(x)s", {"x": 3})):
            for source in (engine, connection):
                found = pd.read_sql(f"select * from second where {where} order by id", source, params=params)
                assert found.values.tolist() == frame[:3].values.tolist()
        assert connection.exec_driver_sql("select count(*) from second where id < $1", (7,)).scalar() == 7
        many = "insert into second (id) values (%s)"
        connection.exec_driver_sql(many, [(at,) for at in range(10_000, 10_003)])
        assert connection.exec_driver_sql("select count(*) from second where id >= 10000").scalar() == 3
    engine.dispose()


def test_a_frame_that_is_too_large_for_a_transaction_says_what_fits(service: Service) -> None:
    """In the free tier, whose requests have at most 4 MiB. 50,000 short rows need more, too, but take longer."""
    name = f"large{uuid4().hex[:8]}"
    service.customers.add_organization(name, tier="free")
    service.customers.add_database(name, name)
    key = service.new_key("read", "write", org=name)
    engine = sa.create_engine(f"plainsql://{address(service, name)}".replace(service.api_key, key))
    frame = pd.DataFrame({"id": range(8_000), "x": 0.1, "at": pd.Timestamp("2026-01-01"), "name": "x" * 600})
    with pytest.raises(sa.exc.DBAPIError, match="Nothing was written") as caught:
        frame.to_sql("t", engine, index=False)
    message = str(caught.value)
    assert "exceeds the limit of 4194304 bytes (tier 'free')" in message
    assert "32,000 parameters" in message
    assert "autocommit" in message
    assert "insert_frame()" in message
    fitting = int(re.findall(r"parts of at most ([\d,]+) parameters", message)[0].replace(",", ""))
    assert fitting > 20_000
    frame[: fitting // 4].to_sql("t", engine, index=False)
    assert pd.read_sql("select count(*) from t", engine).iloc[0, 0] == fitting // 4
    engine.dispose()


def test_sqlalchemy_and_streams_return_what_was_stored(service: Service, db: plainsql.Client) -> None:
    name = f"round{uuid4().hex[:8]}"
    service.customers.add_database(name)
    engine = sa.create_engine(f"plainsql://{address(service, name)}")
    kinds: list[Any] = [
        sa.Integer,
        sa.Numeric,
        sa.LargeBinary,
        sa.DateTime(timezone=True),
        sa.Uuid,
        sa.JSON(none_as_null=True),
        sa.Text,
    ]
    columns: list[sa.Column[Any]] = [sa.Column(each, kind) for each, kind in zip(COLUMNS, kinds, strict=True)]
    made = sa.Table("t", sa.MetaData(), *columns)
    made.create(engine)
    with engine.begin() as connection:
        connection.execute(made.insert(), [dict(zip(COLUMNS, each, strict=True)) for each in few(30)])
        assert [tuple(each) for each in connection.execute(sa.select(made).order_by(made.c.id))] == few(30)
    engine.dispose()
    with db.stream(
        "select $1::numeric, $2::bytea, $3::timestamptz, $4::uuid, $5::jsonb, $6::text", *row(4)[1:]
    ) as rows:
        assert [tuple(each) for each in rows] == [row(4)[1:]]
    absent = db.query("select $1::timestamptz, $2::int, $3::timestamp", pd.NaT, pd.NA, np.datetime64("NaT")).one()
    assert tuple(absent) == (None, None, None)
    time = np.datetime64("2026-01-02T03:04:05.000006", "ns")
    assert db.query("select $1::timestamp", time).value() == dt.datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
