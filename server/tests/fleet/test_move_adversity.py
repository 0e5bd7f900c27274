"""What may get in the way of a move: customer, operator or a server. Nothing is lost, and nothing stays shut."""

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import databases, drafts, moves, organizations
from plainsql_server.core.errors import ConflictError, EngineError, ServiceError
from plainsql_server.directory import audit
from plainsql_server.directory import moves as stored_moves
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin import fencing
from server.tests.fleet.concurrent_changes import move_with_changes
from server.tests.fleet.dying import die_at
from server.tests.fleet.finishing import finish
from server.tests.fleet.stage import Fleet
from server.tests.postgres import SUPERUSER

pytestmark = pytest.mark.chaos


def once(action: Callable[[], None]) -> Callable[[], None]:
    """Does it the first time only."""
    left = [action]
    return lambda: left.pop()() if left else None


def run_as_customer(fleet: Fleet, *statements: str) -> None:
    with fleet.now.owner() as owner:
        for statement in statements:
            owner.execute(statement)


async def main_database(directory: Directory) -> DatabaseRecord:
    organization = await organizations.get(directory, "acme")
    return await databases.get_named(directory, organization.id, "main")


def is_open(fleet: Fleet, cell: str, engine_name: str) -> bool | None:
    """Whether a database lets anybody in; None if it is gone."""
    with fleet.clusters[cell].connect() as admin:
        query = "select datallowconn from pg_database where datname = %s"
        row = admin.execute(query, (engine_name,)).fetchone()
    return None if row is None else bool(row[0])


@pytest.mark.parametrize("change", ["drop table t", "alter table t drop column n"])
def test_a_move_restarts_if_a_table_is_dropped_before_it_is_copied(fleet: Fleet, change: str) -> None:
    run_as_customer(fleet, "create table t (id int, n int)", "insert into t values (1, 1)", "create table u (a int)")
    moved, steps = move_with_changes(fleet, {"data": once(lambda: run_as_customer(fleet, change))})
    assert (moved.attempts, steps.count("data"), fleet.cell()) == (2, 2, "second")


def test_rows_without_columns_and_sequences_that_their_owner_may_not_set_arrive(fleet: Fleet) -> None:
    run_as_customer(
        fleet, "create table nothing ()", "insert into nothing default values", "create sequence mine",
        "create table made (twice int generated always as (2) stored)", "insert into made default values",
        "select nextval('mine') from generate_series(1, 5)", "revoke update on sequence mine from current_user",
    )  # fmt: skip
    more = ("insert into nothing default values", "insert into made default values", "select nextval('mine')")
    move_with_changes(fleet, {"data": lambda: run_as_customer(fleet, *more)})
    with fleet.now.owner() as owner:
        assert owner.execute("select count(*) from nothing").fetchone() == (2,)
        assert owner.execute("select count(*) from made").fetchone() == (2,)
        assert owner.execute("select nextval('mine')").fetchone() == (7,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("select setval('mine', 1)")


def test_deleting_a_database_during_a_move_deletes_its_copy_too(fleet: Fleet) -> None:
    async def delete() -> None:
        async with Directory.open(fleet.dsn) as directory:
            database = await main_database(directory)
            await databases.delete(directory, database, restore_s=0, restorable=False)
            await databases.drop(directory, await databases.get(directory, database.id))

    def delete_apart() -> None:
        # The move has this thread and its event loop, which stand still meanwhile.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, delete()).result()

    with pytest.raises(ServiceError):
        move_with_changes(fleet, {"changes": delete_apart})
    finish(fleet)
    assert fleet.now_states() == ["deleted", "deleted"]
    assert fleet.leaked() == fleet.known_leaks


def test_a_second_move_is_rejected_and_the_first_continues(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first one stands still meanwhile, and says nothing.
    monkeypatch.setattr(moves, "ALIVE_S", 100.0)
    output: list[str] = []
    moved, _ = move_with_changes(fleet, {"changes": lambda: output.append(fleet.move(exit_code=1))})
    assert "already being moved" in output[0]
    assert (moved.attempts, fleet.cell()) == (1, "second")


def test_a_prepared_transaction_prevents_a_move_until_it_ends(fleet: Fleet) -> None:
    run_as_customer(fleet, "create table t (n int)")

    def prepare() -> None:
        with fleet.now.owner() as owner:
            owner.execute("begin")
            owner.execute("insert into t values (1)")
            owner.execute("prepare transaction 'in doubt'")

    def commit() -> None:
        # The first attempt is over, and the database is open again.
        with fleet.now.admin() as admin:
            if admin.execute("select from pg_prepared_xacts where gid = 'in doubt'").rowcount:
                admin.execute("commit prepared 'in doubt'")

    moved, steps = move_with_changes(fleet, {"switch": once(prepare), "schema": commit})
    assert (moved.attempts, steps.count("switch"), fleet.cell()) == (2, 2, "second")
    with fleet.now.owner() as owner:
        assert owner.execute("select count(*) from t").fetchone() == (1,)


def test_a_connection_that_does_not_end_cancels_the_switch_and_unfences_the_database(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "_END_TIMEOUT_MS", 200)
    monkeypatch.setattr(fencing, "_END_ALL_S", 0.3)
    run_as_customer(fleet, "create table t (n int)")
    with fleet.now.owner() as stuck:
        pid = stuck.info.backend_pid
        try:
            with pytest.raises(ConflictError, match="kept changing"):
                # As if it were deep in a system call, again and again.
                move_with_changes(fleet, {"switch": lambda: os.kill(pid, signal.SIGSTOP)})
            run_as_customer(fleet, "insert into t values (1)")
        finally:
            os.kill(pid, signal.SIGCONT)
            stuck.close()
    assert fleet.cell() == "local"


def test_connections_of_other_servers_cause_no_eviction(fleet: Fleet) -> None:
    """After a failover, the fencing connection goes to the new leader, and a reader may still use the old one."""

    async def stop(spared: list[int]) -> None:
        async with Directory.open(fleet.dsn) as directory:
            database = await main_database(directory)
            cell = await moves.choose(directory, database, "second")
            async with (
                moves.begun(directory, database, cell) as (move, _),
                moves.stopped(directory, move, database, spared),
            ):
                pass

    with fleet.now.admin() as here:
        asyncio.run(stop([here.info.backend_pid]))
        with fleet.clusters["second"].connect(SUPERUSER) as elsewhere, pytest.raises(EngineError) as failure:
            asyncio.run(stop([elsewhere.info.backend_pid]))
        assert failure.value.code == "database_busy"
        assert here.execute("select 1").fetchone() == (1,), "it was not even ended"
    run_as_customer(fleet, "select 1")


def test_a_switch_that_commits_after_its_response_is_lost_leaves_the_original_fenced(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_finish, real_note, real_open = stored_moves.finish, audit.note, fencing.open_again
    opened: list[str] = []
    changed, committing = asyncio.Event(), list[asyncio.Task[bool]]()

    async def note(*arguments: Any, **details: Any) -> None:
        await real_note(*arguments, **details)
        # All is changed by now, and nothing is committed.
        changed.set()
        await asyncio.sleep(0.5)

    async def finish_later(_: Directory, *arguments: Any) -> bool:
        async with Directory.open(fleet.dsn) as directory:
            return await real_finish(directory, *arguments)

    async def finish_unheard(*arguments: Any) -> bool:
        committing.append(asyncio.create_task(finish_later(*arguments)))
        await changed.wait()
        raise EngineError("directory_unavailable", "The answer is lost.")

    async def open_again(cell: psycopg.AsyncConnection, database: str) -> None:
        opened.append(database)
        await real_open(cell, database)

    monkeypatch.setattr(audit, "note", note)
    monkeypatch.setattr(stored_moves, "finish", finish_unheard)
    monkeypatch.setattr(fencing, "open_again", open_again)
    with pytest.raises(EngineError, match="answer is lost"):
        move_with_changes(fleet, {})
    assert (fleet.cell(), opened) == ("second", [])
    run_as_customer(fleet, "create table t (n int)")


def test_the_original_of_a_finished_move_stays_fenced(fleet: Fleet) -> None:
    """A restore that began before the move and ends after it opens nothing that a node might still write to."""
    left, _, _ = fleet.now.names()

    async def replace(target: DatabaseRecord) -> None:
        async with (
            Directory.open(fleet.dsn) as directory,
            drafts.draft(directory, target.organization_id, "main", replaces=True) as made,
        ):
            await drafts.replace(directory, made, target, without_code=False, restore_s=60, applied_after_s=0)

    async def find() -> DatabaseRecord:
        async with Directory.open(fleet.dsn) as directory:
            return await main_database(directory)

    target = asyncio.run(find())
    die_at("before what is left is dropped", fleet)
    assert (fleet.cell(), is_open(fleet, "local", left)) == ("second", False)
    with pytest.raises(ConflictError):
        asyncio.run(replace(target))
    assert is_open(fleet, "local", left) is False
