"""SQLAlchemy's ORM in its default mode, on the real service over HTTPS: what programs do, and what it costs.

Each case ends in what another session sees. The numbers of requests are those that docs/transactions.md promises.
"""

import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload

from client.tests.requests_made import requests_made
from client.tests.test_sqlalchemy import address
from server.tests.service import Service


class Base(DeclarativeBase):
    """The models of this file."""


class Person(Base):
    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    balance: Mapped[int] = mapped_column(default=100)
    created: Mapped[dt.datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    updated: Mapped[dt.datetime | None] = mapped_column(sa.DateTime(timezone=True), onupdate=sa.func.now())
    token: Mapped[uuid.UUID] = mapped_column(server_default=sa.text("gen_random_uuid()"))
    data: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)
    twice: Mapped[int] = mapped_column(sa.Computed("balance * 2", persisted=True))
    letters: Mapped[list["Letter"]] = relationship(
        back_populates="person", order_by="Letter.id", cascade="all, delete-orphan"
    )


class Letter(Base):
    __tablename__ = "letters"
    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=True), primary_key=True)
    person_id: Mapped[int] = mapped_column(sa.ForeignKey("people.id"))
    body: Mapped[str]
    person: Mapped[Person] = relationship(back_populates="letters")


class Versioned(Base):
    __tablename__ = "versioned"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column()
    text: Mapped[str]
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy's form


@pytest.fixture(scope="module")
def url(service: Service) -> str:
    name = f"orm{uuid.uuid4().hex[:8]}"
    service.customers.add_database(name)
    return "plainsql://" + address(service, name)


@pytest.fixture(scope="module", params=["eager", "lazy"])
def shared_engine(url: str, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"{url}&rehearse={request.param}")
    yield made
    made.dispose()


@pytest.fixture
def engine(shared_engine: sa.Engine) -> sa.Engine:
    """Tables with Ann, who has number 1, and Bob, who has number 2."""
    Base.metadata.drop_all(shared_engine)
    Base.metadata.create_all(shared_engine)
    with Session(shared_engine) as session:
        session.add_all([Person(name="Ann"), Person(name="Bob")])
        session.commit()
    return shared_engine


def is_lazy(engine: sa.Engine) -> bool:
    return engine.url.query["rehearse"] == "lazy"


def names(engine: sa.Engine) -> list[str]:
    with Session(engine) as session:
        return sorted(session.scalars(sa.select(Person.name)))


def test_adding_one_costs_two_requests(engine: sa.Engine) -> None:
    with Session(engine) as session, requests_made() as requests:
        session.add(Person(name="Cid"))
        session.commit()
        assert len(requests) == 2
    assert names(engine) == ["Ann", "Bob", "Cid"]


def test_get_change_commit_costs_three_requests_or_two_if_lazy(engine: sa.Engine) -> None:
    with Session(engine) as session, requests_made() as requests:
        session.get_one(Person, 1).balance -= 10
        session.commit()
        assert len(requests) == (2 if is_lazy(engine) else 3)
        assert session.get_one(Person, 1).balance == 90


def test_adding_five_hundred_costs_two_requests_and_keeps_their_order(engine: sa.Engine) -> None:
    people = [Person(name=f"p{number}") for number in range(500)]
    with Session(engine) as session:
        with requests_made() as requests:
            session.add_all(people)
            session.commit()
        assert len(requests) == 2
        found = {row.name: row.id for row in session.execute(sa.select(Person.name, Person.id))}
        assert [found[f"p{number}"] for number in range(500)] == [person.id for person in people]


def test_thirty_reads_and_an_insert_cost_thirty_two_requests(engine: sa.Engine) -> None:
    with Session(engine) as session, requests_made() as requests:
        for number in range(30):
            session.get(Person, 100 + number)
        session.add(Letter(person_id=1, body="hit"))
        session.commit()
        assert len(requests) <= 32


def test_parents_with_children_are_stored_in_three_requests(engine: sa.Engine) -> None:
    with Session(engine) as session, requests_made() as requests:
        session.add_all([Person(name=f"q{n}", letters=[Letter(body=str(m)) for m in range(3)]) for n in range(100)])
        session.commit()
        assert len(requests) == 3
        assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == 300


def test_flushed_rows_are_read_before_the_commit_and_are_the_same_after_it(engine: sa.Engine) -> None:
    with Session(engine) as session:
        person = Person(name="Dan", data={"a": [1, None]})
        session.add(person)
        session.flush()
        person.letters.append(Letter(body="x"))
        session.flush()
        assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == 1
        session.expire_all()
        assert session.get(Person, person.id) is person
        assert (person.name, [letter.body for letter in person.letters]) == ("Dan", ["x"])
        seen = (person.id, person.token, person.created, person.letters[0].id, person.twice)
        session.commit()
        assert (person.id, person.token, person.created, person.letters[0].id, person.twice) == seen


def test_a_rollback_undoes_a_flush(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Person(name="Gone"))
        session.flush()
        assert session.scalar(sa.select(sa.func.count()).select_from(Person)) == 3
        session.rollback()
        assert session.scalar(sa.select(sa.func.count()).select_from(Person)) == 2
    assert names(engine) == ["Ann", "Bob"]


def test_a_query_flushes_first(engine: sa.Engine) -> None:
    with Session(engine) as session:
        person = session.scalars(sa.select(Person).where(Person.name == "Ann")).one()
        person.letters.append(Letter(body="auto"))
        assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == 1
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == 1


def test_relationships_load_lazily_and_eagerly_after_a_flush(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.get_one(Person, 1).letters = [Letter(body="a"), Letter(body="b")]
        session.flush()
        session.expire_all()
        assert [letter.body for letter in session.get_one(Person, 1).letters] == ["a", "b"]
        session.expire_all()
        people = session.scalars(sa.select(Person).options(selectinload(Person.letters)).order_by(Person.id)).all()
        assert [len(person.letters) for person in people] == [2, 0]
        session.commit()


def test_server_defaults_are_refreshed_and_stay(engine: sa.Engine) -> None:
    with Session(engine) as session:
        person = Person(name="Eve")
        session.add(person)
        session.flush()
        session.refresh(person)
        seen = (person.created, person.token)
        session.commit()
        assert (person.created, person.token) == seen


def test_the_time_of_an_update_is_that_of_the_commit(engine: sa.Engine) -> None:
    with Session(engine) as session:
        person = session.scalars(sa.select(Person).where(Person.name == "Ann")).one()
        person.balance = 7
        session.flush()
        session.refresh(person)
        provisional = person.updated
        session.commit()
        assert provisional is not None
        assert person.updated is not None
        assert person.updated > provisional
        assert person.twice == 14


def test_an_object_is_merged(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.merge(Person(id=1, name="Anna"))
        session.merge(Person(id=77, name="New"))
        session.commit()
    assert names(engine) == ["Anna", "Bob", "New"]


def test_of_two_sessions_that_change_a_row_the_second_fails(engine: sa.Engine) -> None:
    with Session(engine) as first, Session(engine) as second:
        first.get_one(Person, 1).balance -= 1
        second.get_one(Person, 1).balance -= 1
        first.commit()
        with pytest.raises(sa.exc.OperationalError) as caught:
            second.commit()
        assert getattr(caught.value.orig, "sqlstate", None) == "40001"
        second.rollback()
        assert second.get_one(Person, 1).balance == 99


def test_write_skew_of_two_sessions_is_prevented(engine: sa.Engine) -> None:
    total = sa.select(sa.func.sum(Person.balance)).where(Person.id.in_([1, 2]))
    with Session(engine) as first, Session(engine) as second:
        assert (first.scalar(total), second.scalar(total)) == (200, 200)
        first.get_one(Person, 1).balance = 0
        second.get_one(Person, 2).balance = 0
        first.commit()
        with pytest.raises(sa.exc.OperationalError) as caught:
            second.commit()
        assert getattr(caught.value.orig, "sqlstate", None) == "40001"


def test_a_constraint_fails_at_the_flush_and_the_session_goes_on_after_a_rollback(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Person(name="Ann"))
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        session.rollback()
        assert session.scalar(sa.select(sa.func.count()).where(Person.name == "Ann")) == 1
        session.get_one(Person, 1).name = "Bob"
        with pytest.raises(sa.exc.IntegrityError):
            # A lazy update fails at the commit.
            session.commit() if is_lazy(engine) else session.flush()


def test_a_savepoint_confines_a_failure(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Person(name="Sp1"))
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.add(Person(name="Ann"))
        with session.begin_nested() as nested:
            session.add(Person(name="Sp3"))
            session.flush()
            nested.rollback()
        session.add(Person(name="Sp2"))
        session.commit()
    assert names(engine) == ["Ann", "Bob", "Sp1", "Sp2"]


def test_a_delete_cascades(engine: sa.Engine) -> None:
    with Session(engine) as session:
        person = session.get_one(Person, 1)
        person.letters.append(Letter(body="x"))
        session.commit()
        session.delete(person)
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == 0
    assert names(engine) == ["Bob"]


def test_bulk_statements_return_counts_and_rows(engine: sa.Engine) -> None:
    with Session(engine) as session:
        changed: Any = session.execute(sa.update(Person).values(balance=1))
        assert changed.rowcount == 2
        gone = session.execute(sa.delete(Person).where(Person.name == "Bob").returning(Person.id, Person.name)).all()
        assert gone == [(2, "Bob")]
        session.execute(sa.update(Person), [{"id": 1, "balance": 5}])
        session.commit()
        assert session.execute(sa.select(Person.name, Person.balance)).all() == [("Ann", 5)]


def test_rows_are_locked_by_a_rehearsed_read(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.get_one(Person, 1, with_for_update=True).balance = 55
        session.commit()
        assert session.get_one(Person, 1).balance == 55


def test_a_version_column_finds_a_stale_object(engine: sa.Engine) -> None:
    with Session(engine, expire_on_commit=False) as session:
        session.add(Versioned(text="a"))
        session.commit()
        row = session.get_one(Versioned, 1)
        row.text = "b"
        session.commit()
        assert row.version == 2
        with Session(engine) as other:
            other.get_one(Versioned, 1).text = "c"
            other.commit()
        row.text = "d"
        with pytest.raises(sa.orm.exc.StaleDataError):
            session.flush()


def test_a_row_that_is_gone_is_noticed(engine: sa.Engine) -> None:
    with Session(engine, expire_on_commit=False) as session:
        person = session.get_one(Person, 2)
        session.commit()
        with engine.begin() as other:
            other.execute(sa.text("delete from people where id = 2"))
        person.balance = 0
        with pytest.raises(sa.exc.DatabaseError if is_lazy(engine) else sa.orm.exc.StaleDataError):
            session.commit()


def test_reads_that_depend_on_no_table_need_no_verification(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.execute(sa.select(sa.func.now(), sa.func.random(), sa.func.clock_timestamp()))
        session.add(Person(name="Now"))
        session.commit()
    assert "Now" in names(engine)


def test_a_volatile_read_of_a_table_cannot_be_verified_and_says_so(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.execute(sa.select(Person.name, sa.func.random())).all()
        session.add(Person(name="Rnd"))
        with pytest.raises(sa.exc.NotSupportedError) as caught:
            session.commit()
        assert getattr(caught.value.orig, "code", None) == "volatile_read"
    assert names(engine) == ["Ann", "Bob"]


def test_an_upsert_of_an_existing_row_returns_it(engine: sa.Engine) -> None:
    upsert = insert(Person).values(name="Ann").on_conflict_do_update(index_elements=["name"], set_={"balance": 3})
    with Session(engine) as session:
        assert session.execute(upsert.returning(Person.id, Person.balance)).all() == [(1, 3)]
        session.commit()
        assert session.get_one(Person, 1).balance == 3


def test_an_upsert_of_a_new_row_that_returns_nothing_generated_commits(engine: sa.Engine) -> None:
    upsert = insert(Person).values(name="Upnew").on_conflict_do_update(index_elements=["name"], set_={"balance": 3})
    with Session(engine) as session:
        assert session.execute(upsert.returning(Person.name)).all() == [("Upnew",)]
        session.commit()
    assert "Upnew" in names(engine)


def test_an_insert_without_returning_is_frozen_too(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("insert into letters (person_id, body) values (1, 'core')"))
        number = connection.scalar(sa.text("select max(id) from letters"))
    with engine.connect() as connection:
        assert connection.scalar(sa.text("select id from letters where body = 'core'")) == number


def test_a_json_null_stays_one(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add(Person(name="J", data=sa.JSON.NULL))
        session.flush()
        session.commit()
        assert session.scalar(sa.text("select data::text from people where name = 'J'")) == "null"


def test_a_table_is_made_filled_reflected_and_read_in_one_transaction(engine: sa.Engine) -> None:
    table = sa.Table("made", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("x", sa.Text))
    with engine.begin() as connection:
        table.create(connection)
        assert [each["name"] for each in sa.inspect(connection).get_columns("made")] == ["id", "x"]
        assert connection.execute(table.insert().returning(table.c.id), {"x": "a"}).scalar() == 1
        assert connection.execute(sa.select(table)).all() == [(1, "a")]
    table.drop(engine)


def test_a_circular_deferred_key_is_flushed_in_parts(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for sql in (
            "drop table if exists d1, d2 cascade",
            "create table d1 (id int primary key, d2 int not null)",
            "create table d2 (id int primary key, d1 int not null references d1 deferrable initially deferred)",
            "alter table d1 add foreign key (d2) references d2 deferrable initially deferred",
        ):
            connection.execute(sa.text(sql))
    with engine.begin() as connection:
        connection.execute(sa.text("insert into d1 values (1, 1)"))
        assert connection.scalar(sa.text("select count(*) from d1")) == 1
        connection.execute(sa.text("insert into d2 values (1, 1)"))
    with engine.begin() as connection:
        connection.execute(sa.text("drop table d1, d2 cascade"))


def test_a_trigger_that_runs_before_the_insert_keeps_generated_keys(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for sql in (
            "drop table if exists tr",
            "create table tr (id serial primary key, n int, at timestamptz)",
            "create or replace function tr_f() returns trigger language plpgsql as "
            "$f$ begin new.at = now(); new.n = new.n + 1; return new; end $f$",
            "create trigger tr_t before insert or update on tr for each row execute function tr_f()",
        ):
            connection.execute(sa.text(sql))
    with engine.begin() as connection:
        row = connection.execute(sa.text("insert into tr (n) values (1) returning id, n, at")).one()
        assert connection.execute(sa.text("select id, n from tr")).one() == (row.id, 2)
        connection.execute(sa.text("update tr set n = 5"))
        assert connection.scalar(sa.text("select at from tr")) >= row.at
    table = sa.Table("tr", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Integer))
    with engine.begin() as connection:
        insert_many = sa.insert(table).returning(table.c.id, table.c.n, sort_by_parameter_order=True)
        rows = connection.execute(insert_many, [{"n": 20}, {"n": 10}]).all()
        assert [each.n for each in rows] == [21, 11]
    with engine.begin() as connection:
        assert set(rows) < set(connection.execute(sa.select(table)).all())
        connection.execute(sa.text("delete from tr where n > 10"))
    insert_two = sa.text("insert into tr (n) select generate_series(1, 2) returning id")
    with pytest.raises(sa.exc.NotSupportedError, match="trigger that runs before"), engine.begin() as connection:
        connection.execute(insert_two)
    with engine.begin() as connection:
        assert connection.execute(sa.text("select id, n from tr")).all() == [(row.id, 6)]
        connection.execute(sa.text("drop table tr"))


def test_many_flushes_with_a_read_each_commit(engine: sa.Engine) -> None:
    with Session(engine) as session:
        for number in range(20):
            session.add(Letter(body=f"q{number}", person_id=1))
            assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == number + 1
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Letter)) == 20


def test_a_streamed_read_sees_flushed_rows(engine: sa.Engine) -> None:
    with Session(engine) as session:
        streamed = sa.select(Person.name).order_by(Person.id).execution_options(yield_per=1)
        assert session.scalars(streamed).all() == ["Ann", "Bob"]
        session.add(Person(name="Cid"))
        assert session.scalars(streamed).all() == ["Ann", "Bob", "Cid"]
        session.commit()
