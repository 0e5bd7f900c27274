"""A database is moved, and everything in it is at the new cell as it was, with nobody using it meanwhile."""

import signal
import subprocess

import psycopg
import pytest

from plainsql_server.core.errors import ConflictError
from server.tests.fleet.concurrent_changes import move_with_changes
from server.tests.fleet.stage import Fleet
from server.tests.operations.test_backups import SCHEMA, described
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

# Kinds of tables by which a row may be hard to find again, and what is no row of a table.
CONTENT = [
    "create table keyed (id int primary key, t text)", "create table keyless (a int, b float8, c timestamptz)",
    "create table two (a int, b uuid default gen_random_uuid(), primary key (a, b))",
    "create type mood as enum ('good', 'bad')", "create table moods (m mood primary key, n int)",
    "create extension citext", "create table by_citext (t citext primary key, n int)",
    "create unlogged table fleeting (a int)", "create table parted (a int, b text) partition by range (a)",
    "create table parted_low partition of parted for values from (0) to (100)",
    "create table parted_rest partition of parted default",
    "create table made (a int, twice int generated always as (a * 2) stored, id int generated always as identity)",
    "create table parent (id int primary key)", "create table child (id int references parent, n int)",
    "create sequence counter start 5", "create table \"strange \"\" name\" (\"x\" int, \"col umn\" text)",
    "create materialized view seen as select count(*) from keyed",
    "insert into keyed select g, repeat(md5(g::text), g % 7) from generate_series(1, 2000) g",
    "insert into keyless select g % 10, g / 3.0, '2026-01-01'::timestamptz + g * interval '1 s'"
    " from generate_series(1, 300) g",
    "insert into keyless select 1, 'NaN', null from generate_series(1, 3)",
    "insert into two select g from generate_series(1, 50) g", "insert into moods values ('good', 1)",
    "insert into by_citext values ('One', 1)", "insert into fleeting select generate_series(1, 20)",
    "insert into parted select g, 'x' from generate_series(1, 200) g",
    "insert into made (a) select generate_series(1, 9)",
    "insert into parent select generate_series(1, 50)", "insert into child select g, 1 from generate_series(1, 50) g",
    "select nextval('counter') from generate_series(1, 3)", "select lo_from_bytea(4711, 'first')",
    "select lo_from_bytea(4712, 'second')", "insert into \"strange \"\" name\" values (1, E'a\\tb\\\\c\\n')",
]  # fmt: skip


@pytest.fixture
def filled(fleet: Fleet) -> Fleet:
    with fleet.now.owner() as owner:
        for statement in CONTENT:
            owner.execute(statement)
    return fleet


def test_a_moved_database_has_the_same_content(filled: Fleet) -> None:
    before = filled.now.checksums()
    assert "Requests waited for" in filled.move()
    assert filled.cell() == "second"
    assert filled.now.checksums() == before
    with filled.now.owner() as owner:
        assert owner.execute("select nextval('counter')").fetchone() == (8,)
        assert owner.execute("select lo_get(4711)").fetchone() == (b"first",)
    assert filled.leaked() == filled.known_leaks


def test_a_moved_database_has_the_same_schema_owners_rights_and_policies(fleet: Fleet) -> None:
    _, owner_role, reader_role = fleet.now.names()
    with fleet.now.owner() as owner:
        for statement in SCHEMA:
            owner.execute(statement.format(owner=owner_role, reader=reader_role))
    before = described(fleet.now, "main")
    fleet.move()
    assert described(fleet.now, "main") == before
    with fleet.now.reader() as reader:
        assert reader.execute("select * from shown").fetchall() == [(1,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("select * from hidden")
    with fleet.now.owner() as owner:
        assert owner.execute("show session_replication_role").fetchone() == ("origin",)
        owner.execute("insert into inner_rooms.t (b) values (7)")
        assert owner.execute("select b from inner_rooms.t").fetchone() == (1,), "its triggers act again"


def test_changes_during_the_copy_are_applied(filled: Fleet) -> None:
    expected: dict[str, object] = {}

    def at_last() -> None:
        change(filled, CHANGES_2)
        expected.update(state(filled))

    moved, steps = move_with_changes(filled, {"data": lambda: change(filled, CHANGES_1), "switch": at_last})
    assert steps[-2:] == ["changes", "switch"]
    assert (moved.attempts, filled.cell()) == (1, "second")
    assert moved.followed_rows > 1000
    assert state(filled) == expected
    with filled.now.owner() as owner:
        assert owner.execute("select count(*) from seen").fetchone() == (1,)
        assert owner.execute("select count from seen").fetchone() == (1500,), "a view that was refreshed is as fresh"
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            owner.execute("insert into child values (1, 1)")


CHANGES_1 = [
    "update keyed set t = t || 'x' where id % 3 = 0", "delete from keyed where id > 1900",
    "delete from keyless where ctid in (select ctid from keyless where b = 'NaN' limit 2)",
    "update keyless set c = null where a = 4", "insert into keyless select 4, 1.0 / 3, null from generate_series(1, 5)",
    "update two set a = a + 1", "update moods set n = 2", "insert into moods values ('bad', 3)",
    "update by_citext set t = 'ONE'", "insert into by_citext values ('two', 2)", "delete from fleeting where a > 10",
    "update parted set a = a + 50 where a between 60 and 120", "delete from made where a < 3",
    "insert into made (a) values (100)", "delete from child where id = 1", "delete from parent where id = 1",
    "select lo_put(4711, 2, 'XX')", "select lo_unlink(4712)", "select lo_from_bytea(4713, 'third')",
    "grant select on large object 4713 to public", "select nextval('counter')", "vacuum keyed",
    "update \"strange \"\" name\" set \"x\" = 2",
]  # fmt: skip
CHANGES_2 = [
    "truncate fleeting", "insert into fleeting select generate_series(1, 7)", "delete from keyed where id % 4 = 0",
    "insert into keyed select g, 'new' from generate_series(3000, 3074) g", "vacuum full two", "update two set a = -a",
    "refresh materialized view seen", "select setval('counter', 77, false)",
    "do $$ begin for i in 1..20 loop begin insert into parent values (1000 + i);"
    " if i % 2 = 0 then raise exception 'no'; end if; exception when others then null; end; end loop; end $$",
    "begin; insert into keyed values (9999); rollback", "create temp table passing (a int)",
]  # fmt: skip


def change(fleet: Fleet, statements: list[str]) -> None:
    """Changes as the customer makes them, with others who hold locks on the same rows, and a record of a request."""
    stage = fleet.now
    with stage.owner() as owner, stage.owner() as locker, stage.admin() as admin:
        locker.execute("begin; select * from keyed where id % 12 = 3 and id < 1900 for key share")
        for statement in statements:
            owner.execute(statement) if ";" not in statement[:7] else _apart(owner, statement)
        locker.execute("rollback")
        admin.execute("delete from plainsql.requests where key = 'k5'")
        admin.execute(
            "insert into plainsql.requests select 'k' || g, 'req_' || g, 'h'"
            " from generate_series((select count(*) from plainsql.requests), 100) g on conflict do nothing"
        )
        admin.execute("insert into plainsql.responses values ('k' || (select count(*) from plainsql.responses), 'b')")


def _apart(owner: psycopg.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        owner.execute(statement)


def state(fleet: Fleet) -> dict[str, object]:
    """Everything that a database holds."""
    stage = fleet.now
    with stage.admin() as admin:
        objects = "select m.oid, lo_get(m.oid), m.lomacl::text ~ '=r/' from pg_largeobject_metadata m order by 1"
        return {
            **stage.checksums(),
            "objects": admin.execute(objects).fetchall(),
            "counter": admin.execute("select last_value, is_called from counter").fetchall(),
            "requests": admin.execute("select * from plainsql.requests order by 1").fetchall(),
            "responses": admin.execute("select * from plainsql.responses order by 1").fetchall(),
        }


def test_a_move_restarts_if_a_definition_changes(filled: Fleet) -> None:
    def change_once() -> None:
        with filled.now.owner() as owner:
            owner.execute("create table if not exists later as select 7 as a")
            owner.execute("alter table keyed add column if not exists fresh int default 3")

    moved, steps = move_with_changes(filled, {"changes": change_once})
    assert moved.attempts == 2
    assert steps.count("data") == 2
    with filled.now.owner() as owner:
        assert owner.execute("select a from later").fetchone() == (7,)
        assert owner.execute("select distinct fresh from keyed").fetchall() == [(3,)]


def test_a_move_fails_if_definitions_keep_changing(filled: Fleet) -> None:
    def change_always() -> None:
        with filled.now.owner() as owner:
            owner.execute("alter table keyed alter t set default 'a', alter t drop default")

    before = filled.now.checksums()
    with pytest.raises(ConflictError, match="kept changing"):
        move_with_changes(filled, {"changes": change_always})
    assert filled.cell() == "local"
    assert filled.now.checksums() == before
    with filled.now.owner() as owner:
        owner.execute("insert into keyed values (123456)")
    assert filled.leaked() == filled.known_leaks


# Code of a customer's in every place where reading, writing or planning may run it; it fails if a superuser does.
HOSTILE = [
    "create function trap(a int) returns int immutable language plpgsql as $$ begin"
    " if (select rolsuper from pg_catalog.pg_roles where rolname = current_user)"
    " or (select rolsuper from pg_catalog.pg_roles where rolname = session_user) then"
    " raise exception 'run as a superuser'; end if; return a; end $$",
    "create table trapped (a int primary key, b int default public.trap(1), check (public.trap(a) = a))",
    "create index on trapped (a) where public.trap(1) = 1", "create index on trapped ((public.trap(a)))",
    "create statistics s on (public.trap(a)), b from trapped", "insert into trapped select generate_series(1, 100)",
    "create table bare (a int, check (public.trap(a) = a))", "create index on bare (a) where public.trap(2) = 2",
    "insert into bare select generate_series(1, 100)", "create table log (n int)",
    "create function note() returns trigger language plpgsql as"
    " $$ begin perform public.trap(1); insert into public.log values (new.a); return new; end $$",
    "create trigger always_noted after insert or update on trapped for each row execute function note()",
    "alter table trapped enable always trigger always_noted",
    "create rule counted as on insert to bare do also insert into public.log values (0)",
    "alter table bare enable always rule counted",
]  # fmt: skip


def test_no_customer_code_runs_as_superuser_and_triggers_fire_once(fleet: Fleet) -> None:
    def change() -> None:
        with fleet.now.owner() as owner:
            owner.execute("update trapped set b = b + 1 where a <= 10")
            owner.execute("delete from bare where a > 90")
            owner.execute("insert into bare values (1000)")

    with fleet.now.owner() as owner:
        for statement in HOSTILE:
            owner.execute(statement)
    moved, _ = move_with_changes(fleet, {"data": change, "switch": change})
    assert moved.attempts == 1
    with fleet.now.owner() as owner:
        assert owner.execute("select count(*) from log where n > 0").fetchone() == (20,)
        assert owner.execute("select count(*) from log where n = 0").fetchone() == (2,)
        owner.execute("insert into trapped values (2000)")
        owner.execute("insert into bare values (2000)")
        assert owner.execute("select count(*) from log").fetchone() == (24,), "they act as before"


WAITING = "select from pg_stat_activity where application_name ~ '^plainsql-move' and wait_event_type = 'Lock'"


def test_a_move_that_is_interrupted_leaves_everything_as_it_was(filled: Fleet) -> None:
    before = filled.now.checksums()
    with filled.now.owner() as owner, filled.now.admin() as admin:
        # The move waits for this, to know the table's size.
        owner.execute("begin; lock table keyed")
        moving = filled.now.start("database", "move", "--org", "acme", "main", "--to", "second", stderr=subprocess.PIPE)
        wait_for(lambda: admin.execute(WAITING).rowcount > 0, 30, lambda: "the move does not wait")
        moving.send_signal(signal.SIGINT)
        moving.communicate(timeout=60)
    assert moving.returncode == 1
    assert filled.cell() == "local"
    assert filled.now.checksums() == before
    assert filled.leaked() == filled.known_leaks
