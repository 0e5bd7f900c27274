"""The dialect on the real service: ORM, Alembic, pandas, and SQLAlchemy's own compliance suite.

The suite runs in a process of its own; here a part of it, and all of it with PLAINSQL_TEST_SQLALCHEMY_SUITE=full.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pandas
import polars
import pytest
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from client.tests.test_guide import GUIDE
from plainsql import dbapi
from server.tests.service import Service

SUITE = Path(__file__).parent / "sqlalchemy_suite"
SWITCHING = "AutocommitIsolationTest"
# Locked rows are not streamed; and there is no isolation level but the default and autocommit.
NOT_IN_TRANSACTIONS = "test_ss_cursor_status and for_update or test_dialect_user_setting_is_restored"
IS_FULL = os.environ.get("PLAINSQL_TEST_SQLALCHEMY_SUITE") == "full"
# One of each kind: inserts, fetching, streams, types, reflection, expressions.
PART = (
    "InsertBehaviorTest or RowCountTest or FetchLimitOffsetTest or ServerSideCursorsTest or CTETest or NumericTest or "
    "HasTableTest or UuidTest"
)


def address(service: Service, database: str = "main", **options: str) -> str:
    parts = urlsplit(service.data_url)
    query = "&".join(f"{name}={value}" for name, value in {"ca_file": service.dev["ca_file"], **options}.items())
    return f"k:{service.api_key}@{parts.hostname}:{parts.port}/{database}?{query}"


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    """Other tests' tables have columns of types that SQLAlchemy doesn't know, which Alembic warns of."""
    name = f"orm{uuid4().hex[:8]}"
    service.customers.add_database(name)
    return name


@pytest.fixture(params=["transactions", "autocommit"])
def engine(service: Service, database: str, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    made = sa.create_engine(
        "plainsql://" + address(service, database, autocommit="true" if request.param == "autocommit" else "false")
    )
    yield made
    made.dispose()


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "orm_users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    data: Mapped[dict[str, object]] = mapped_column(sa.JSON)
    notes: Mapped[list["Note"]] = relationship(back_populates="user", order_by="Note.id")


class Note(Base):
    __tablename__ = "orm_notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(sa.ForeignKey("orm_users.id"))
    body: Mapped[str]
    user: Mapped[User] = relationship(back_populates="notes")


def test_the_key_is_masked(engine: sa.Engine, service: Service) -> None:
    assert service.api_key not in str(engine.url)
    assert service.api_key not in repr(engine)


def test_objects_are_stored_loaded_changed_and_deleted(engine: sa.Engine) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(User(name="Ann", data={"a": [1, None]}, notes=[Note(body="x"), Note(body="y")]))
        session.commit()
    with Session(engine) as session:
        user = session.scalars(sa.select(User)).one()
        assert (user.name, user.data, [note.body for note in user.notes]) == ("Ann", {"a": [1, None]}, ["x", "y"])
        user.name = "Bob"
        session.delete(user.notes[0])
        session.commit()
        assert session.scalar(sa.select(User.name)) == "Bob"
        assert session.scalar(sa.select(sa.func.count()).select_from(Note)) == 1
    with Session(engine) as session:
        session.add(Note(body="an orphan", user_id=-1))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
    Base.metadata.drop_all(engine)


def is_autocommit(engine: sa.Engine) -> bool:
    return engine.url.query["autocommit"] == "true"


def test_a_rollback_undoes_a_transaction_and_has_no_effect_in_autocommit(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plainsql")
    name = f"rb_{uuid4().hex[:8]}"
    table = sa.Table(name, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    table.create(engine)
    connection = engine.connect()
    connection.execute(table.insert(), [{"id": 1}])
    connection.rollback()
    connection.execute(table.insert().values(id=2))
    # Without a commit, as programs for autocommit do.
    connection.close()
    with engine.connect() as fresh:
        assert fresh.scalars(sa.select(table)).all() == ([1, 2] if is_autocommit(engine) else [])
    assert [each.getMessage() for each in caplog.records] == (
        ["Rollback without effect: 1 write was committed at once (autocommit) and cannot be rolled back."] * 2
        if is_autocommit(engine)
        else []
    )
    table.drop(engine)


def test_an_error_in_a_block_is_the_one_that_the_program_gets(engine: sa.Engine) -> None:
    table = sa.Table(f"eb_{uuid4().hex[:8]}", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    table.create(engine)
    with pytest.raises(sa.exc.IntegrityError):
        insert_twice(engine, table)
    table.drop(engine)


def insert_twice(engine: sa.Engine, table: sa.Table) -> None:
    with engine.begin() as connection:
        for _ in range(2):
            connection.execute(table.insert().values(id=1))


def test_writes_return_rows_and_savepoints_need_a_transaction(engine: sa.Engine) -> None:
    table = sa.Table(f"r_{uuid4().hex[:8]}", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    table.create(engine)
    with engine.begin() as connection:
        assert connection.scalar(sa.insert(table).values(id=7).returning(table.c.id)) == 7
        if is_autocommit(engine):
            with pytest.raises(sa.exc.NotSupportedError, match="no savepoints in autocommit"):
                connection.begin_nested()
        else:
            with connection.begin_nested() as nested:
                connection.execute(sa.insert(table).values(id=8))
                nested.rollback()
    with engine.begin() as connection:
        assert connection.scalars(sa.select(table)).all() == [7]
    table.drop(engine)


def test_a_data_frame_survives_a_round_trip(engine: sa.Engine) -> None:
    name = f"pd_{uuid4().hex[:8]}"
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", "y", None], "c": [0.5, 1.5, 2.5]})
    assert frame.to_sql(name, engine, index=False) == 3
    for sql in (name, f"select * from {name} order by a", sa.text(f"select * from {name} order by a")):
        back = pandas.read_sql(sql, engine)
        pandas.testing.assert_frame_equal(back, frame, check_dtype=False)
    with engine.connect() as connection:
        streamed = connection.execution_options(stream_results=True).execute(
            sa.text(f"select a from {name} order by a")
        )
        assert streamed.scalars().all() == [1, 2, 3]
    with engine.begin() as connection:
        connection.execute(sa.text(f"drop table {name}"))


def test_polars_reads_and_writes(engine: sa.Engine) -> None:
    name = f"pl_{uuid4().hex[:8]}"
    frame = polars.DataFrame({"a": [1, None], "b": ["x", None], "d": [date(2026, 1, 1), None]})
    assert frame.write_database(name, engine) == 2
    assert polars.read_database(f"select * from {name} order by a", engine).equals(frame)
    decimals = polars.read_database("select 1.10 as n", engine, schema_overrides={"n": polars.Decimal(10, 2)})
    assert decimals.row(0) == (Decimal("1.10"),)
    with engine.begin() as connection:
        connection.execute(sa.text(f"drop table {name}"))


def test_pandas_keeps_decimals_if_asked(engine: sa.Engine) -> None:
    frame = pandas.read_sql("select 1.10 as n", engine, coerce_float=False)
    assert frame["n"].to_list() == [Decimal("1.10")]


def test_a_data_frame_of_more_rows_than_a_transaction_has_statements_is_stored(engine: sa.Engine) -> None:
    name = f"pd_{uuid4().hex[:8]}"
    rows = 25_000
    pandas.DataFrame({"a": range(rows), "b": "x"}).to_sql(name, engine, index=False)
    with engine.begin() as connection:
        assert connection.scalar(sa.text(f"select count(distinct a) from {name}")) == rows
        connection.execute(sa.text(f"drop table {name}"))


@pytest.mark.parametrize("option", ["autocommit=yes", "rehearse=often", "tls=0", "timeout_s=soon", "tsl=false"])
def test_an_empty_option_is_rejected(option: str) -> None:
    with pytest.raises(dbapi.InterfaceError, match=r"In the URL|unknown option"):
        sa.create_engine(f"plainsql://k:x@localhost/main?{option}")


def test_alembic_sees_the_difference_upgrades_and_downgrades(engine: sa.Engine) -> None:
    name = f"al_{uuid4().hex[:8]}"
    wanted = sa.MetaData()
    sa.Table(name, wanted, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(20), index=True))
    options = {"include_object": lambda _o, n, kind, *_: kind != "table" or n == name}
    for expected in (["CreateTableOp", "CreateIndexOp"], []):
        with engine.begin() as connection:
            context = MigrationContext.configure(connection, opts=options)
            script = produce_migrations(context, wanted)
            steps = operations_in(script.upgrade_ops)
            assert [type(step).__name__ for step in steps] == expected
            for step in steps:
                Operations(context).invoke(step)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=options)
        for step in operations_in(produce_migrations(context, sa.MetaData()).upgrade_ops):
            Operations(context).invoke(step)
    assert not sa.inspect(engine).has_table(name)


def operations_in(operation: Any) -> list[Any]:
    """The operations themselves, without those that only hold others."""
    if hasattr(operation, "ops"):
        return [step for each in operation.ops for step in operations_in(each)]
    return [operation]


def suite_database(service: Service) -> str:
    name = f"suite{uuid4().hex[:8]}"
    service.customers.add_database(name)
    for schema in ("test_schema", "test_schema_2"):
        service.query(f"create schema {schema}", database=name)
    return name


@pytest.mark.timeout(1800 if IS_FULL else 240)
@pytest.mark.slow
def test_sqlalchemys_own_suite_passes_in_transactions(service: Service) -> None:
    url = address(service, suite_database(service))
    output = suite_output(url, f"not ({NOT_IN_TRANSACTIONS})" + ("" if IS_FULL else f" and ({PART})"))
    assert (counted(output), "xfailed" in output) == ((1860, 27) if IS_FULL else (127, 6), False)
    if IS_FULL:
        refused = suite_output(url, NOT_IN_TRANSACTIONS, passes=False)
        assert re.findall(r"(\d+) (failed|passed)", refused) == [("3", "failed")]


@pytest.mark.timeout(1800 if IS_FULL else 240)
@pytest.mark.slow
def test_sqlalchemys_own_suite_passes(service: Service) -> None:
    name = suite_database(service)
    everything = suite_output(address(service, name, autocommit="true"), "" if IS_FULL else PART)
    # Autocommit can be switched on and off only where the address does not choose it.
    switching = suite_output(address(service, name), SWITCHING)
    cases = re.findall(r"^SKIPPED .*::([A-Za-z]+)_[^:]*::(\w+)", everything, re.MULTILINE)
    skipped = {f"{kind}.{test}" for kind, test in cases}
    documented = set(re.findall(r"`(\w+Test\w*(?:\.[\w*]+)?)`", GUIDE.read_text()))
    assert [case for case in skipped if not any(fnmatch(case, each) for each in documented)] == []
    assert counted(switching) == (11, 0)
    if IS_FULL:
        skipped |= classes_not_run(everything) & classes_not_run(switching)
        assert {case for case in skipped if "." not in case} == {each for each in documented if "." not in each}
        assert [each for each in documented if not any(fnmatch(case, each) for case in skipped)] == []
    assert counted(everything) == ((1853, 26) if IS_FULL else (129, 6))


def suite_output(url: str, chosen: str, *, passes: bool = True) -> str:
    """What the suite prints in a process of its own. `chosen` is as pytest's -k."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "--tb=short", "-k", chosen, "--dburi", f"plainsql+suite://{url}"],
        cwd=SUITE, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUITE), *sys.path])}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    print(done.stdout[-300:])
    assert (done.returncode == 0) == passes, done.stdout[-8_000:]
    return done.stdout


def counted(output: str) -> tuple[int, int]:
    """How many cases passed and were skipped, as pytest's last line says."""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped)", output)}
    return counts["passed"], counts.get("skipped", 0)


def classes_not_run(output: str) -> set[str]:
    """Those that require something as a whole, and so are not even skipped."""
    return set(re.findall(r"^NOT RUN (\w+)", output, re.MULTILINE))
