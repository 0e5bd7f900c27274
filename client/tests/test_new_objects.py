"""Objects made in a transaction, which have another OID in each rehearsal: the program can use the OID that it saw."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations

import plainsql
from client.tests.test_sqlalchemy import address
from plainsql.errors import TransactionError
from plainsql.interactive import unit as units
from server.tests.service import Service

OID = "select oid from pg_class where relname = $1"
NAME = "select relname from pg_catalog.pg_class where oid = $1"


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = f"oids{uuid4().hex[:8]}"
    service.customers.add_database(name)
    return name


@pytest.fixture
def together(service: Service, database: str) -> Iterator[plainsql.Transaction]:
    """A transaction that has made a table `t`, and ends in a rollback."""
    settings = {"ca_file": service.dev["ca_file"], "database": database}
    with plainsql.connect(service.data_url, service.api_key, **settings) as db:
        transaction = db.transaction()
        transaction.query("create table t (id int primary key, n int)")
        yield transaction
        transaction.rollback()


def test_an_oid_stands_for_the_object_that_it_was_read_from(together: plainsql.Transaction) -> None:
    oid = together.query(OID, "t").value()
    assert together.query(OID, "t").value() == oid
    assert together.query(NAME, oid).value() == "t"
    columns = "select attrelid, attname from pg_attribute where attrelid = $1 and attnum > 0 order by attnum"
    assert [tuple(row) for row in together.query(columns, oid)] == [(oid, "id"), (oid, "n")]
    together.query("insert into t values (1, 2)")
    together.query("create table u ()")
    other = together.query(OID, "u").value()
    assert other != oid
    both = "select oid, relname from pg_class where oid = any ($1) order by relname"
    assert [tuple(row) for row in together.query(both, [other, oid, 1])] == [(oid, "t"), (other, "u")]
    arrays = together.query("select array_agg(oid order by relname) from pg_class where relname in ('t', 'u')")
    assert arrays.value() == [oid, other]


def test_an_object_keeps_its_oid_when_it_is_renamed(together: plainsql.Transaction) -> None:
    oid = together.query(OID, "t").value()
    together.query("alter table t rename to v")
    together.query("create table t ()")
    assert together.query(NAME, oid).value() == "v"
    assert (together.query(OID, "v").value(), together.query(OID, "t").value() == oid) == (oid, False)


def test_an_object_that_is_dropped_or_undone_is_not_found(together: plainsql.Transaction) -> None:
    oid = together.query(OID, "t").value()
    together.query("savepoint before")
    together.query("drop table t")
    assert together.query(NAME, oid).first() is None
    together.query("rollback to before")
    assert together.query(NAME, oid).value() == "t"
    together.query("savepoint other")
    together.query("create table u ()")
    undone = together.query(OID, "u").value()
    together.query("rollback to other")
    assert together.query(NAME, undone).first() is None


def test_schemas_types_and_functions_have_oids_too(together: plainsql.Transaction) -> None:
    together.query("create schema s")
    together.query("create type s.mood as enum ('good', 'bad')")
    together.query("create function s.one() returns int language sql return 1")
    schema = together.query("select oid from pg_namespace where nspname = 's'").value()
    mood = together.query("select oid from pg_type where typnamespace = $1 and typtype = 'e'", schema).value()
    labels = together.query("select enumlabel from pg_enum where enumtypid = $1 order by enumsortorder", mood)
    assert [row.enumlabel for row in labels] == ["good", "bad"]
    assert together.query("select proname from pg_proc where pronamespace = $1", schema).value() == "one"


def test_an_oid_of_no_use_yet_is_an_error_and_other_numbers_are_not(together: plainsql.Transaction) -> None:
    oid = together.query(OID, "t").value()
    for statement, params in (
        ("select n from t where tableoid = $1", [oid]),
        ("insert into t values (1, $1::oid::int)", [oid]),
        (f"select relname from pg_class where oid = {oid}", []),
    ):
        together.query("savepoint before")
        with pytest.raises(TransactionError, match="made in the same transaction") as caught:
            together.query(statement, *params)
        assert caught.value.sqlstate == "0A000"
        with pytest.raises(TransactionError, match="An earlier statement"):
            together.query("select 1")
        together.query("rollback to before")
    together.query("insert into t values (1, $1)", oid)
    assert together.query("select n from t where n = $1", oid).value() == oid


def test_an_object_whose_name_changes_each_time_cannot_be_looked_up(together: plainsql.Transaction) -> None:
    together.query("create table long (body text)")
    oid = together.query("select reltoastrelid from pg_class where relname = 'long'").value()
    with pytest.raises(TransactionError, match="can't be found by its name"):
        together.query(NAME, oid)


@pytest.fixture
def engine(service: Service, database: str) -> Iterator[sa.Engine]:
    made = sa.create_engine("plainsql://" + address(service, database))
    yield made
    made.dispose()


def models() -> sa.MetaData:
    wanted = sa.MetaData()
    sa.Table(
        "parents", wanted,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), index=True, comment="its name"),
        sa.Column("mood", sa.Enum("good", "bad", name="mood")),
        sa.UniqueConstraint("name", "mood", name="once"),
    )  # fmt: skip
    sa.Table(
        "children", wanted,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("parent_id", sa.ForeignKey("parents.id", name="of_parent")),
        sa.CheckConstraint("id > 0", name="positive"),
    )  # fmt: skip
    return wanted


def test_tables_are_reflected_in_the_transaction_that_makes_them(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        models().create_all(connection)
        found = sa.MetaData()
        found.reflect(connection)
        assert sorted(found.tables) == ["children", "parents"]
        key = next(iter(found.tables["children"].foreign_keys))
        assert (key.target_fullname, key.constraint is not None and key.constraint.name) == ("parents.id", "of_parent")
        inspector = sa.inspect(connection)
        assert inspector.get_pk_constraint("parents")["constrained_columns"] == ["id"]
        assert [each["name"] for each in inspector.get_indexes("parents")] == ["ix_parents_name", "once"]
        assert [each["name"] for each in inspector.get_unique_constraints("parents")] == ["once"]
        assert [each["name"] for each in inspector.get_check_constraints("children")] == ["positive"]
        assert {each["comment"] for each in inspector.get_columns("parents")} == {None, "its name"}


def test_alembic_finds_no_difference_right_after_an_upgrade(engine: sa.Engine) -> None:
    wanted = models()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        wanted.create_all(connection)
        assert compare_metadata(context, wanted) == []
        Operations(context).drop_index("ix_parents_name", "parents")
        Operations(context).add_column("children", sa.Column("extra", sa.Integer))
        differences: list[Any] = compare_metadata(context, wanted)
        assert sorted(each[0] for each in differences) == ["add_index", "remove_column"]


def test_oids_are_looked_up_only_for_reads_of_the_catalogue() -> None:
    unit = units.UnitOfWork()
    unit.append(units.Entry("create table t ()", [], writes=True))
    unit.entries[0].made = {"table public.t": 16_500}

    def sent(sql: str, *params: Any) -> int:
        return len(unit.rehearsal([unit.entry(sql, list(params))]).statements)

    assert (sent("select n from t"), sent("select now()"), sent("insert into t values (16500)")) == (2, 2, 2)
    # The lookup, and the list of what there is.
    assert sent(OID, "t") == 4
    # And the OID that is used.
    assert sent(NAME, 16_500) == 5
    assert sent("select 1 from pg_class where oid = any ($1)", [16_500]) == 6
