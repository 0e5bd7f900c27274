"""Branches on a real cell: the copy is complete and the customer's own, and none of the customer's code ran for it."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from plainsql_server.control_plane import branches, databases, organizations
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.core.errors import ConflictError, EngineError, InternalError, ServiceError
from plainsql_server.core.observation import Observation
from plainsql_server.core.tasks import end
from plainsql_server.directory.branching import branches as stored
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import branching, fencing, hand_over, provisioning
from plainsql_server.engine.admin.provisioning import EngineNames
from server.tests.operations.stage import Stage
from server.tests.operations.test_backups import SCHEMA, described
from server.tests.operations.test_hostile import lay_traps, superusers
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


async def branch_here(stage: Stage, name: str = "copy", parent: str = "main", organization: str = "acme") -> None:
    """The same in this process, where a test can change limits."""
    async with Directory.open(stage.dsn) as directory:
        await branch_in(directory, name, parent, organization)


async def branch_in(directory: Directory, name: str, parent: str = "main", organization: str = "acme") -> None:
    owner = await organizations.get(directory, organization)
    original = await databases.get_named(directory, owner.id, parent)
    await branches.create(directory, owner.id, name, NewBranch(original, None))


@pytest.mark.parametrize("strategy", ["WAL_LOG", "FILE_COPY"])
async def test_no_code_of_the_customers_runs_when_its_database_is_branched(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    mark = tmp_path / "mark"
    if strategy == "FILE_COPY":
        monkeypatch.setattr(branching, "_WAL_LOG_BYTES", 0)
    lay_traps(stage, mark)
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
    monkeypatch.setattr(branching, "_PAUSES_S", (0.1,))
    engine_name, _, _ = stage.names()
    with stage.postgres.connect(SUPERUSER, engine_name) as keeper:
        keeper.execute("set application_name = 'plainsql-backup-keeper'")
        with pytest.raises(EngineError) as refusal:
            await branch_here(stage)
        assert refusal.value.code == "database_busy"
        assert keeper.execute("select 1").fetchone() == (1,)
    assert stage.ask("select state, held_until from databases where name = 'main'") == [("ready", None)]
    assert stage.ask("select state from databases where name = 'copy'") == [("deleted",)]
    # The same command makes it anew.
    branch(stage)
    assert stage.names("copy")


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


class Killed(BaseException):
    """Nobody handles it, as nobody handles kill -9."""


async def die(*_: Any) -> None:
    raise Killed


def nothing_fails(observation: Observation) -> None:
    raise AssertionError(observation)


async def finish_all(stage: Stage) -> None:
    """What any control process does when the claims of a dead one are over."""
    stage.ask("update databases set work_after = now(), held_until = null where state in ('creating', 'deleting')")
    async with Directory.open(stage.dsn) as directory:
        finisher = Finisher(directory, nothing_fails)
        async with asyncio.timeout(60):
            while await finisher.finish_some():
                pass


def state(stage: Stage, name: str = "copy") -> str:
    """Of the last database of that name."""
    return str(stage.ask("select state from databases where name = %s order by id desc limit 1", name)[0][0])


# After CREATE DATABASE, with a copy that is closed, and in the middle of a copy that superusers may connect to.
@pytest.mark.parametrize(("module", "function"), [(provisioning, "run"), (fencing, "allow_connections")])
async def test_a_half_copy_does_not_keep_its_parent_from_being_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, module: Any, function: str
) -> None:
    others = stage.on_cell()
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
    create_roles = provisioning.create_roles

    async def create_roles_and_arm(*arguments: Any) -> Any:
        made = await create_roles(*arguments)
        monkeypatch.setattr(module, function, die)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(provisioning, "create_roles", create_roles_and_arm)
        with pytest.raises(Killed):
            await branch_here(stage)
    monkeypatch.undo()
    stage.run("database", "delete", "--org", "acme", "main", "--permanently", "--yes")
    await finish_all(stage)
    assert (state(stage, "main"), state(stage)) == ("deleted", "deleted")
    assert stage.on_cell() == others


async def test_an_upgrade_does_not_take_a_half_copy_for_a_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
    with monkeypatch.context() as patch:
        patch.setattr(branching, "hand_over", die)
        with pytest.raises(Killed):
            await branch_here(stage)
    commented = "select shobj_description(oid, 'pg_database') from pg_database where datname = %s"
    half_copy = stage.ask("select engine_name from databases where name = 'copy'")[0][0]
    await provisioning.renew_rights(stage.postgres.conninfo, SUPERUSER)
    with stage.admin() as admin:
        assert admin.execute(commented, (half_copy,)).fetchone() == (provisioning.HALF_COPY,)
    await finish_all(stage)
    assert state(stage) == "deleted"
    branch(stage)
    stage.run("database", "delete", "--org", "acme", "main", "--permanently", "--yes")
    with stage.owner("copy") as owner:
        assert owner.execute("select a from t").fetchall() == [(1,)]


async def test_a_copy_with_anything_of_its_parents_roles_never_becomes_a_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = stage.on_cell()

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(branching, "hand_over", nothing)
    with pytest.raises(InternalError) as failure:
        await branch_here(stage)
    assert "still has something of its parent's roles" in (failure.value.internal_context or "")
    assert state(stage) == "deleted"
    stage.run("database", "delete", "--org", "acme", "main", "--permanently", "--yes")
    assert stage.on_cell() == others


async def test_a_copy_in_which_one_table_still_belongs_to_its_parents_role_never_becomes_a_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else was handed over."""
    with stage.owner() as owner:
        owner.execute("create table kept as select 1 as a; create table given as select 1 as a")
    others = stage.on_cell()

    async def hand_over_but_one(copy: psycopg.AsyncConnection, original: EngineNames, *arguments: Any) -> None:
        await hand_over.hand_over(copy, original, *arguments)
        back = sql.SQL("alter table public.kept owner to {}").format(sql.Identifier(original.owner_role))
        await copy.execute(back)

    with monkeypatch.context() as patch:
        patch.setattr(branching, "hand_over", hand_over_but_one)
        with pytest.raises(InternalError) as failure:
            await branch_here(stage)
    assert "still has something of its parent's roles" in (failure.value.internal_context or "")
    assert (state(stage), stage.on_cell()) == ("deleted", others)
    branch(stage)


def count_holds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is noted whenever the parent's requests are held."""
    holds: list[str] = []
    hold = stored.hold

    async def counted(directory: Directory, parent: Any, for_s: float) -> bool:
        holds.append(parent.name)
        return await hold(directory, parent, for_s)

    monkeypatch.setattr(stored, "hold", counted)
    return holds


async def test_requests_are_not_held_for_a_transaction_that_never_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if each of its statements is short."""
    monkeypatch.setattr(branching, "_PAUSES_S", (0.2, 0.2))
    holds = count_holds(monkeypatch)
    engine_name, owner_role, _ = stage.names()
    async with await psycopg.AsyncConnection.connect(stage.postgres.dsn(owner_role, engine_name)) as tenant:
        await tenant.execute("select pg_sleep(1)")

        async def talk() -> None:
            while True:
                await tenant.execute("select pg_sleep(0.01)")

        talking = asyncio.create_task(talk())
        with pytest.raises(EngineError) as refusal:
            await branch_here(stage)
        await end(talking)
    assert (refusal.value.code, holds) == ("database_busy", [])


async def test_requests_are_not_held_for_an_idle_connection_of_the_operator(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "_PAUSES_S", ())
    holds = count_holds(monkeypatch)
    with stage.admin(), pytest.raises(EngineError) as refusal:
        await branch_here(stage)
    assert (refusal.value.code, holds) == ("database_busy", [])
    # Nothing was copied, so it does not count for the daily limit.
    assert stage.ask("select branch_of from databases where name = 'copy'") == [(None,)]


async def test_a_creation_that_must_wait_for_a_connection_is_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL would wait for 5 seconds, and let no one connect."""

    async def never(_: Any) -> bool:
        return False

    monkeypatch.setattr(branching, "_PAUSES_S", ())
    monkeypatch.setattr(branching, "_is_busy", never)
    cancelled = asyncio.Event()
    execute = psycopg.AsyncConnection.execute

    async def watched(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return await execute(self, query, *arguments, **options)
        except psycopg.errors.QueryCanceled:
            cancelled.set()
            raise

    with stage.admin() as admin:
        admin.execute("select 1")
        monkeypatch.setattr(psycopg.AsyncConnection, "execute", watched)
        with pytest.raises(EngineError) as refusal:
            await branch_here(stage)
        assert refusal.value.code == "database_busy"
        assert cancelled.is_set()
        assert admin.execute("select 1").fetchone() == (1,)
    # The cell had work with it.
    assert stage.ask("select branch_of is not null from databases where name = 'copy'") == [(True,)]


async def test_branches_that_wait_refuse_others_and_keep_no_one_from_creating_a_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, may_go_on = asyncio.Semaphore(0), asyncio.Event()
    copy_when_quiet = branching._copy_when_quiet

    async def stand(*arguments: Any) -> None:
        waiting.release()
        await may_go_on.wait()
        await copy_when_quiet(*arguments)

    monkeypatch.setattr(branching, "_copy_when_quiet", stand)
    async with Directory.open(stage.dsn) as directory:
        two, three = [await organizations.create(directory, name, "free") for name in ("two", "three")]
        for other in (two, three):
            await databases.create(directory, other.id, "main")
        first = asyncio.create_task(branch_in(directory, "copy"))
        await waiting.acquire()
        # Of the same name, and of another one.
        for name, code in (("copy", "name_taken"), ("second", "database_busy")):
            with pytest.raises(ServiceError) as refusal:
                await branch_in(directory, name)
            assert refusal.value.code == code
        assert stage.ask("select from databases where name = 'second'") == []
        second = asyncio.create_task(branch_in(directory, "copy", organization="two"))
        await waiting.acquire()
        with pytest.raises(EngineError, match="other branches"):
            await branch_in(directory, "copy", organization="three")
        created = await databases.create(directory, three.id, "during")
        assert created.state == "ready"
        owner = await organizations.get(directory, "acme")
        made = await databases.get_named(directory, owner.id, "copy")
        assert made.is_being_branched
        with pytest.raises(ConflictError, match="still being copied"):
            await databases.delete(directory, made, restore_s=0, restorable=False)
        may_go_on.set()
        await first
        await second
    assert [row[0] for row in stage.ask("select state from databases where name = 'copy'")] == ["ready", "ready"]


async def test_a_branch_is_refused_while_someone_else_works_on_its_parent(stage: Stage) -> None:
    engine_name, _, _ = stage.names()
    with stage.postgres.connect(SUPERUSER, "postgres") as worker:
        worker.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (engine_name,))
        with pytest.raises(EngineError) as refusal:
            await branch_here(stage)
    assert (refusal.value.code, refusal.value.retryable) == ("database_busy", True)
    assert stage.ask("select from databases where name = 'copy'") == []


async def test_the_finisher_drops_an_interrupted_branch_and_waits_for_no_parent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = stage.on_cell()
    with monkeypatch.context() as patch:
        patch.setattr(branching, "_copy_when_quiet", die)
        with pytest.raises(Killed):
            await branch_here(stage)
    holds = count_holds(monkeypatch)
    with stage.owner() as owner, owner.transaction():
        owner.execute("create table t (a int)")
        await finish_all(stage)
    assert (state(stage), holds) == ("deleted", [])
    assert stage.on_cell() == others


@pytest.mark.parametrize("change", [("suspend",), ("delete", "--yes")])
async def test_a_copy_outlives_what_is_done_to_its_parent_meanwhile(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]
) -> None:
    async def change_and_hand_over(*arguments: Any) -> None:
        await asyncio.to_thread(stage.run, "database", *change, "--org", "acme", "main")
        await hand_over.hand_over(*arguments)

    monkeypatch.setattr(branching, "hand_over", change_and_hand_over)
    await branch_here(stage)
    assert state(stage) == "ready"


async def test_a_parent_that_is_being_moved_is_not_copied(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def moved(*_: Any) -> bool:
        return False

    others = stage.on_cell()
    monkeypatch.setattr(stored, "hold", moved)
    with pytest.raises(ConflictError, match="moved"):
        await branch_here(stage)
    assert (state(stage), stage.on_cell()) == ("deleted", others)
