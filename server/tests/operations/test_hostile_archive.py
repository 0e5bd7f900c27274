"""A database with traps of its customer is restored at a moment: the spare cluster runs none of them, and the restored
database runs them as the customer or not at all.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import psycopg
import pytest

from plainsql_server.cli.progress import Bar
from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.restore_at import RestoredAt, restore_at
from plainsql_server.operations.restore import restore_database
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.test_hostile import RUN_BY_A_RESTORE, lay_traps, powerful, superusers
from server.tests.postgres import SUPERUSER

pytestmark = pytest.mark.chaos

# An administrator has every call of a function in the database counted, on the spare cluster, too.
_COUNTED = "alter database {} set track_functions = 'all'"
_CALLED = "select funcname, calls from pg_stat_user_functions where schemaname not in ('pg_catalog', 'plainsql')"


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        yield cell


class Spied:
    """What a spare cluster had when the backup of its database was complete: a `Progress` that looks then."""

    def __init__(self, cell: ArchivedCell) -> None:
        self._stage, self._work_folder = cell.stage, cell.work_folder
        self.called: list[tuple[str, int]] = []
        self.seen: list[tuple[str, str]] = []
        self.powerful: list[tuple[str, bool, bool]] = []

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        if label == "remove the spare cluster":
            self._look()

    def at(self, done: int) -> None:
        pass

    def _look(self) -> None:
        (folder,) = self._work_folder.glob("plainsql-spare-*/pg")
        conninfo = f"host={folder} port=5432 user={SUPERUSER} dbname={self._stage.names()[0]}"
        with psycopg.connect(conninfo, autocommit=True) as spare:
            self.called = spare.execute(_CALLED).fetchall()
            self.seen = spare.execute("select place, who from public.seen").fetchall()
            self.powerful = powerful(spare)


async def restore(cell: ArchivedCell, name: str, spied: Spied) -> RestoredAt:
    """As `restore --at` does, with a look at the spare cluster before it is removed."""
    async with Directory.open(cell.stage.dsn) as directory:
        owner = await organizations.get(directory, "acme")
        origin = await databases.get_named(directory, owner.id, "main")

        async def goal(file: BinaryIO, _: int) -> DatabaseRecord:
            return await restore_database(directory, owner.id, name, file, Bar())

        archive, point = Archive(cell.config_folder), datetime.now(UTC)
        return await restore_at(directory, origin, point, archive, goal, folder=cell.work_folder, progress=spied)


def test_no_trap_runs_with_more_rights_than_its_customers(cell: ArchivedCell, tmp_path: Path) -> None:
    stage, mark = cell.stage, tmp_path / "mark"
    # The user that PostgreSQL runs as could make the mark.
    tmp_path.chmod(0o777)
    lay_traps(stage, mark)
    with stage.postgres.connect() as admin:
        admin.execute(_COUNTED.format(stage.names()[0]))
    before, spied = superusers(stage), Spied(cell)
    asyncio.run(restore(cell, "copy", spied))
    assert (spied.called, spied.seen, spied.powerful) == ([], [], before)
    _, owner, _ = stage.names("copy")
    with stage.admin("copy") as admin:
        seen = admin.execute("select place, who, login, super from public.seen").fetchall()
        assert {(who, login, is_super) for _, who, login, is_super in seen} == {(owner, owner, False)}
        assert {place for place, *_ in seen} == RUN_BY_A_RESTORE
        assert admin.execute("select to_regclass('plainsql.trapped')").fetchone() == (None,)
        functions = "select distinct rolname from pg_proc p join pg_roles r on r.oid = proowner where proname ~ 'spy'"
        assert admin.execute(functions).fetchall() == [(owner,)]
        large = "select rolname from pg_largeobject_metadata join pg_roles r on r.oid = lomowner"
        assert admin.execute(large).fetchall() == [(owner,)]
    assert superusers(stage) == before
    assert not mark.exists()
    assert stage.checksums("copy").keys() == stage.checksums().keys()
    assert cell.left_over() == []


# No policy lets the owner see a row, and the function of each would fail.
_FORCED = """
    create function called() returns bool language plpgsql as 'begin raise exception ''called''; end';
    create schema "a schema";
    create table "a schema"."a ""table"" of it" (a int primary key);
    create table public.parts (a int references "a schema"."a ""table"" of it") partition by list (a);
    create table public.part_1 partition of public.parts for values in (1);
    insert into "a schema"."a ""table"" of it" values (1), (2);
    insert into public.parts values (1), (1);
"""
_FORCE = """
    alter table {0} enable row level security, force row level security;
    create policy called on {0} using (public.called());
"""
_ARE_FORCED = "select oid::regclass::text from pg_class where relrowsecurity and relforcerowsecurity order by 1"


def test_tables_that_hide_their_rows_from_their_owner_are_restored_and_hide_them_again(cell: ArchivedCell) -> None:
    stage, tables = cell.stage, ['"a schema"."a ""table"" of it"', "public.parts", "public.part_1"]
    stage.run("database", "create", "--org", "acme", "hiding")
    with stage.owner("hiding") as owner:
        owner.execute(_FORCED)
        for table in tables:
            owner.execute(_FORCE.format(table))
        point = datetime.now(UTC).isoformat()
    stage.run("restore", "--org", "acme", "hidden", "--from", "hiding", *cell.options(point))
    assert stage.checksums("hidden") == stage.checksums("hiding") != {}
    assert sorted(rows for rows, _ in stage.checksums("hidden").values()) == [2, 2, 2]
    for name in ("hiding", "hidden"):
        with stage.admin(name) as admin:
            assert len(admin.execute(_ARE_FORCED).fetchall()) == len(tables)
            assert admin.execute("select from pg_policy").rowcount == len(tables)
        with stage.owner(name) as owner, pytest.raises(psycopg.errors.RaiseException, match="called"):
            owner.execute("select * from public.parts")
    assert cell.left_over() == []


def test_materialized_views_have_what_policies_let_their_owner_see(cell: ArchivedCell) -> None:
    stage = cell.stage
    stage.run("database", "create", "--org", "acme", "posts")
    with stage.owner("posts") as owner:
        owner.execute("create table posts (title text, published bool)")
        owner.execute("insert into posts values ('shown', true), ('hidden', false)")
        owner.execute("alter table posts enable row level security, force row level security")
        owner.execute("create policy published on posts using (published)")
        owner.execute("create materialized view seen as select title from posts")
        point = datetime.now(UTC).isoformat()
    stage.run("restore", "--org", "acme", "posts-again", "--from", "posts", *cell.options(point))
    assert stage.checksums("posts-again") == stage.checksums("posts")
    with stage.owner("posts-again") as owner:
        assert owner.execute("select title from seen").fetchall() == [("shown",)]
        assert owner.execute("select title from posts").fetchall() == [("shown",)]
    with stage.admin("posts-again") as admin:
        assert admin.execute("select from public.posts").rowcount == 2


# What the database has, and what the refusal says. Each makes a restore fail, and must leave nothing behind.
_UNRESTORABLE = {
    "a row that is too long to be written out": (
        [
            "create table unrestorable (a bytea, b bytea, c bytea, d bytea)",
            "insert into unrestorable values (repeat('x', 140000000)::bytea)",
            *(f"update unrestorable set {column} = a" for column in "bcd"),
        ],
        "out of memory",
    ),
    "rows that break a rule that was changed since": (
        [
            "create function is_kept(a int) returns bool language sql immutable as 'select true'",
            "create table unrestorable (a int check (public.is_kept(a)))",
            "insert into unrestorable values (1)",
            "create or replace function is_kept(a int) returns bool language sql immutable as 'select false'",
        ],
        "violates check constraint",
    ),
    "a unique index over a function that was changed since": (
        [
            "create function kept(a int) returns int language sql immutable as 'select a'",
            "create table unrestorable as select generate_series(1, 2) as a",
            "create unique index on unrestorable (public.kept(a))",
            "create or replace function kept(a int) returns int language sql immutable as 'select 1'",
        ],
        "could not create unique index",
    ),
}


@pytest.mark.parametrize("what", _UNRESTORABLE)
def test_a_database_that_cannot_be_restored_is_refused_and_can_be_branched(cell: ArchivedCell, what: str) -> None:
    stage, (statements, reason) = cell.stage, _UNRESTORABLE[what]
    stage.run("database", "create", "--org", "acme", "odd")
    try:
        with stage.owner("odd") as owner:
            for statement in statements:
                owner.execute(statement)
        before, options = stage.on_cell(), cell.options(datetime.now(UTC).isoformat())
        refused = stage.run("restore", "--org", "acme", "never", "--from", "odd", *options, exit_code=1)
        assert reason in refused.stderr
        assert len(refused.stderr.splitlines()[-1]) < 1000
        assert stage.ask("select from databases where name = 'never' and state <> 'deleted'") == []
        assert stage.on_cell() == before
        assert cell.left_over() == []
        # A branch is a copy of the files.
        stage.run("database", "branch", "--org", "acme", "odd", "odd-copy")
        counted = "select count(*), sum(pg_column_size(a)) from unrestorable"
        with stage.owner("odd") as parent, stage.owner("odd-copy") as copy:
            assert copy.execute(counted).fetchall() == parent.execute(counted).fetchall()
        stage.run("database", "delete", "--org", "acme", "odd-copy", "--permanently", "--yes")
    finally:
        stage.run("database", "delete", "--org", "acme", "odd", "--permanently", "--yes")
