"""A database with extensions is moved with them, or not at all where the other cell does not offer them."""

from collections.abc import Iterator

import psycopg
import pytest

from server.tests.fleet.concurrent_changes import move_with_changes
from server.tests.fleet.stage import Fleet

pytestmark = pytest.mark.chaos


@pytest.fixture
def limited(fleet: Fleet) -> Iterator[Fleet]:
    """The other cell does not offer hstore."""
    fleet.now.run("cell", "extensions", "second", "--refuse", "hstore")
    yield fleet
    fleet.now.run("cell", "extensions", "second", "--default")


def test_a_database_is_moved_with_its_extensions(fleet: Fleet) -> None:
    with fleet.now.owner() as owner:
        owner.execute("create schema tools")
        owner.execute("create extension pgcrypto schema tools")
        owner.execute('create extension "uuid-ossp"')
        owner.execute("create table people (id uuid primary key default uuid_generate_v4(), hash text)")
        owner.execute(
            "insert into people (hash) select tools.crypt('s', tools.gen_salt('md5')) from generate_series(1, 9)"
        )

    def change() -> None:
        with fleet.now.owner() as owner:
            owner.execute("insert into people (hash) values (tools.crypt('late', tools.gen_salt('md5')))")

    moved, _ = move_with_changes(fleet, {"data": change})
    assert (moved.attempts, fleet.cell()) == (1, "second")
    with fleet.now.owner() as owner:
        right = "select count(*) from people where hash in (tools.crypt('s', hash), tools.crypt('late', hash))"
        assert owner.execute(right).fetchone() == (10,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("select uuid_generate_v1()")
        owner.execute("drop extension pgcrypto")
        owner.execute("create extension pgcrypto")


def test_a_database_stays_if_the_other_cell_does_not_offer_its_extensions(limited: Fleet) -> None:
    with limited.now.owner() as owner:
        owner.execute("create extension hstore")
        owner.execute("create extension citext")
    message = limited.move(exit_code=1)
    assert "has extensions that the cell 'second' does not offer: hstore." in message
    assert "plainsql-server cell extensions second --allow hstore" in message
    assert limited.cell() == "local"
    assert limited.now_states() == ["ready"], "nothing was begun"
    assert limited.now.ask("select count(*) from moves") == [(0,)]
    limited.now.run("cell", "extensions", "second", "--allow", "hstore")
    limited.move()
    assert limited.cell() == "second"
