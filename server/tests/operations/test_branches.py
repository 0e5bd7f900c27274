"""Branches on a real cell: the copy is complete and the customer's own, and none of the customer's code ran for it."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.core.errors import EngineError
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import branching, hand_over
from server.tests.operations.stage import Stage
from server.tests.operations.test_backups import SCHEMA, described
from server.tests.operations.test_hostile import TRAPS, superusers
from server.tests.postgres import SUPERUSER


def branch(
    stage: Stage, parent: str = "main", name: str = "copy", *, exit_code: int = 0
) -> "subprocess.CompletedProcess[str]":
    return stage.run("database", "branch", "--org", "acme", parent, name, exit_code=exit_code)


def test_a_branch_has_the_same_content_schema_owners_rights_and_policies(stage: Stage) -> None:
    _, owner_role, reader_role = stage.names()
    with stage.owner() as owner:
        for statement in SCHEMA:
            owner.execute(statement.format(owner=owner_role, reader=reader_role))
        owner.execute("create extension citext")
    assert branch(stage).stdout.startswith("db_")
    # Text that names a role is the customer's, and stays as it is.
    assert described(stage, "copy").replace(f"'{reader_role}'", "'READER'") == described(stage, "main")
    assert stage.checksums("copy") == stage.checksums()
    with stage.reader("copy") as reader:
        assert reader.execute("select * from shown").fetchall() == [(1,)]
        for refused in ("select * from hidden", "insert into shown values (2)", "select * from plainsql.requests"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(refused)
    with stage.owner("copy") as owner:
        owner.execute("create table later as select 7 as a")
        owner.execute("alter table shown add column b int")
        owner.execute("drop extension citext")
        assert owner.execute("select lo_get(4711)").fetchone() == (b"large",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("select pg_notify('a', 'b')")
    with stage.reader("copy") as reader:
        assert reader.execute("select a from later").fetchone() == (7,)


def test_the_roles_of_a_database_cannot_enter_its_branch_nor_those_of_the_branch_the_database(stage: Stage) -> None:
    branch(stage)
    for here, there in (("main", "copy"), ("copy", "main")):
        for role in stage.names(here)[1:]:
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                stage.postgres.connect(role, stage.names(there)[0])


def test_writes_to_either_never_show_in_the_other(stage: Stage) -> None:
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        owner.execute("create sequence counter")
    branch(stage)
    with stage.owner() as owner, stage.owner("copy") as other:
        owner.execute("insert into t values (2)")
        other.execute("insert into t values (3)")
        assert [each.execute("select nextval('counter')").fetchone() for each in (owner, owner, other)] == [
            (1,), (2,), (1,),
        ]  # fmt: skip
        assert owner.execute("select a from t order by a").fetchall() == [(1,), (2,)]
        assert other.execute("select a from t order by a").fetchall() == [(1,), (3,)]


def test_a_branch_has_no_records_of_requests_and_its_own_secret(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.execute("insert into plainsql.requests values ('k1', 'req_1', '\\x01')")
        admin.execute("insert into plainsql.responses values ('k1', '\\x7b7d')")
    branch(stage)
    with stage.admin() as main, stage.admin("copy") as copy:
        assert main.execute("select count(*) from plainsql.requests").fetchone() == (1,)
        for table in ("requests", "responses"):
            assert copy.execute(f"select count(*) from plainsql.{table}").fetchone() == (0,)
        hashes = "select hash from plainsql.secrets"
        assert len(copy.execute(hashes).fetchall()) == 1
        assert copy.execute(hashes).fetchall() != main.execute(hashes).fetchall()


def test_a_branch_outlives_its_parent_and_leaves_nothing_when_it_is_deleted(stage: Stage, tmp_path: Path) -> None:
    others = stage.on_cell()
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
    # A backup has a role of its own, which the customer may grant something to.
    stage.backup(tmp_path / "main.backup")
    _, owner_role, _ = stage.names()
    with stage.owner() as owner:
        owner.execute(f'grant select on t to "b{owner_role[1:]}"')
    branch(stage)
    branch(stage, "copy", "copy-of-copy")
    stage.run("database", "delete", "--org", "acme", "main", "--permanently", "--yes")
    for name in ("copy", "copy-of-copy"):
        with stage.owner(name) as owner:
            assert owner.execute("select a from t").fetchall() == [(1,)]
        stage.backup(tmp_path / f"{name}.backup", name)
        stage.run("database", "delete", "--org", "acme", name, "--permanently", "--yes")
    assert stage.on_cell() == others


async def branch_here(stage: Stage) -> None:
    """The same in this process, where a test can change limits."""
    async with Directory.open(stage.dsn) as directory:
        organization = await organizations.get(directory, "acme")
        parent = await databases.get_named(directory, organization.id, "main")
        await databases.create(directory, organization.id, "copy", branch=NewBranch(parent, None))


@pytest.mark.parametrize("strategy", ["WAL_LOG", "FILE_COPY"])
async def test_no_code_of_the_customers_runs_when_its_database_is_branched(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    mark = tmp_path / "mark"
    if strategy == "FILE_COPY":
        monkeypatch.setattr(branching, "_WAL_LOG_BYTES", 0)
    with stage.owner() as owner:
        for trap in TRAPS:
            owner.execute(trap.replace("{mark}", str(mark)).replace("{superuser}", SUPERUSER))
        # Any role can tell of itself there.
        owner.execute("grant all on seen to public")
        owner.execute("truncate seen")
    before = superusers(stage)
    await branch_here(stage)
    _, owner_role, _ = stage.names("copy")
    with stage.admin() as main, stage.admin("copy") as copy:
        for each in (main, copy):
            assert each.execute("select * from public.seen").fetchall() == []
        owners = "select distinct rolname from pg_proc p join pg_roles r on r.oid = proowner where proname ~ 'spy'"
        assert copy.execute(owners).fetchall() == [(owner_role,)]
        functions = "select count(*) from pg_proc where pronamespace = 'plainsql'::regnamespace"
        assert copy.execute(functions).fetchone() == main.execute(functions).fetchone()
    assert superusers(stage) == before
    assert not mark.exists()
    assert stage.checksums("copy") == stage.checksums()


async def test_a_branch_of_many_tables_takes_few_locks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock table is shared by all tenants of a cell."""
    make = "do $$ begin for i in {}..{} loop execute format('create table t%s (a serial)', i); end loop; end $$"
    with stage.owner() as owner:
        for first in range(0, 600, 200):
            owner.execute(make.format(first, first + 199))
    locks: list[int] = []
    renew_records = hand_over._renew_records

    async def count_and_renew(copy: psycopg.AsyncConnection, *arguments: Any) -> None:
        held = "select count(*) from pg_locks where pid = pg_backend_pid()"
        locks.append((await (await copy.execute(held)).fetchone() or (0,))[0])
        await renew_records(copy, *arguments)

    monkeypatch.setattr(hand_over, "_renew_records", count_and_renew)
    await branch_here(stage)
    assert len(locks) == 1
    assert max(locks) < 200
    with stage.admin("copy") as admin:
        assert admin.execute("select count(*) from pg_tables where tablename ~ '^t[0-9]+$'").fetchone() == (600,)


async def test_a_backup_is_not_cut_off_by_a_branch(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "_TRY_FOR_S", 0.3)
    engine_name, _, _ = stage.names()
    with stage.postgres.connect(SUPERUSER, engine_name) as keeper:
        keeper.execute("set application_name = 'plainsql-backup-keeper'")
        with pytest.raises(EngineError) as refusal:
            await branch_here(stage)
        assert refusal.value.code == "database_busy"
        assert keeper.execute("select 1").fetchone() == (1,)
    assert stage.ask("select state, held_until from databases where name = 'main'") == [("ready", None)]
    assert stage.ask("select state from databases where name = 'copy'") == [("failed",)]
    # The same command completes it.
    branch(stage)
    assert stage.ask("select state from databases where name = 'copy'") == [("ready",)]


async def test_a_running_statement_is_waited_for_and_not_cut_off(stage: Stage) -> None:
    engine_name, owner_role, _ = stage.names()
    async with await psycopg.AsyncConnection.connect(
        stage.postgres.dsn(owner_role, engine_name), autocommit=True
    ) as tenant:
        await tenant.execute("create table t (a int)")
        writing = asyncio.create_task(tenant.execute("insert into t select 1 from pg_sleep(1.5)"))
        await branch_here(stage)
        await writing
    assert stage.checksums("copy") == stage.checksums()
    with stage.owner() as owner:
        assert owner.execute("select count(*) from t").fetchone() == (1,)
