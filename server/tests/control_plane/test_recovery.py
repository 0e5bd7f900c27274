"""Recovery, on a real cell: what was left in doubt ends as it was decided, and nobody who is alive is disturbed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from plainsql_server.control_plane import databases, organizations
from plainsql_server.control_plane.spanning import Recovery
from plainsql_server.core.errors import EngineError, ServiceError
from plainsql_server.core.observation import Observation
from plainsql_server.core.tasks import end
from plainsql_server.directory import cells, spanning
from plainsql_server.directory.cells import CellChange, CellRecord, CellState
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.spanning import NewRecord, SpanningState
from plainsql_server.engine.admin.provisioning import ROLE_CONNECTION_LIMIT
from plainsql_server.engine.admin.reaping import CellWatch
from plainsql_server.engine.execution.spanning import gid_of, new_gid
from plainsql_server.operations.files.cell import CellConfig
from server.tests.control_plane.records import is_made, is_prepared, prepare, store_record, unfreed
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.processes import wait_for


@pytest.mark.parametrize(("state", "is_done"), [("open", False), ("aborted", False), ("committed", True)])
async def test_a_transaction_in_doubt_ends_as_decided(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, recovery: Recovery, *, state: str, is_done: bool
) -> None:
    gid = prepare(postgres, database)
    await store_record(directory, database, gid, state, hold_s=-1)
    assert await recovery.finish_some() == 1
    assert not is_prepared(postgres, gid)
    assert is_made(postgres, database) is is_done
    assert await unfreed(directory) == 0
    assert await recovery.finish_some() == 0


@pytest.mark.parametrize("state", ["waiting", "open", "committed"])
async def test_a_record_held_by_a_live_process_is_left_alone(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, recovery: Recovery, state: str
) -> None:
    gid = prepare(postgres, database)
    await store_record(directory, database, gid, state, hold_s=60)
    assert await recovery.finish_some() == 0
    assert is_prepared(postgres, gid)
    with postgres.connect(database=database.engine_name) as admin:
        admin.execute(f"rollback prepared '{gid_of(gid, 0)}'".encode())


async def test_a_dead_waiter_does_not_block_recovery(
    postgres: Postgres, directory: Directory, cell: CellRecord, database: DatabaseRecord, recovery: Recovery
) -> None:
    other_organization = await organizations.create(directory, "Other", "free")
    other = await databases.create(directory, other_organization.id, "main")
    gid, other_gid = prepare(postgres, database), prepare(postgres, other)
    id_ = await store_record(directory, database, gid, "open")
    waiting = await store_record(directory, database, new_gid(), "waiting", hold_s=-1)
    await store_record(directory, other, other_gid, "committed", hold_s=-1)
    assert await recovery.finish_some() == 1
    assert is_made(postgres, other)
    assert is_prepared(postgres, gid)
    assert await spanning.advance(directory, waiting, 60) is None
    # And where both of them died.
    await store_record(directory, database, new_gid(), "waiting", hold_s=-1)
    await spanning.postpone(directory, id_)
    assert await recovery.finish_some() == 1
    assert not is_prepared(postgres, gid)
    assert await unfreed(directory) == 0


@contextmanager
def clock_gone_back(postgres: Postgres) -> Iterator[None]:
    """The engine's clock is an hour behind what it was, for those who ask it in the admin's database."""
    with postgres.connect() as admin:
        admin.execute("alter function pg_catalog.clock_timestamp() rename to real_clock_timestamp")
        try:
            admin.execute(
                "create function pg_catalog.clock_timestamp() returns timestamptz language sql"
                " as $$ select pg_catalog.real_clock_timestamp() - interval '1 hour' $$"
            )
            yield
        finally:
            admin.execute("drop function if exists pg_catalog.clock_timestamp()")
            admin.execute("alter function pg_catalog.real_clock_timestamp() rename to clock_timestamp")


async def test_a_clock_set_back_hides_no_usage(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, recovery: Recovery
) -> None:
    gid = prepare(postgres, database)
    await store_record(directory, database, gid, "committed", hold_s=-1)
    with clock_gone_back(postgres):
        assert await recovery.finish_some() == 1
    assert not is_prepared(postgres, gid)
    assert is_made(postgres, database)


@pytest.fixture
def without_standby() -> Iterator[Postgres]:
    """A cell whose commits wait for a standby that is not there."""

    def config(root: Path) -> CellConfig:
        return CellConfig(SUPERUSER, str(root), others={"synchronous_standby_names": "nobody"})

    with running_postgres(config) as running:
        yield running


def prepare_alone(postgres: Postgres) -> str:
    """The name of a prepared transaction, which waited for nobody."""
    gid = gid_of(new_gid(), 0)
    with postgres.connect() as connection:
        connection.execute("set synchronous_commit = local")
        connection.execute("begin")
        connection.execute("create table made ()")
        connection.execute(f"prepare transaction '{gid}'".encode())
    return gid


def waiting_for_a_standby(postgres: Postgres) -> int:
    with postgres.connect() as admin:
        return len(admin.execute("select from pg_stat_activity where wait_event = 'SyncRep'").fetchall())


def has_table(postgres: Postgres) -> bool:
    with postgres.connect() as admin:
        return admin.execute("select to_regclass('public.made') is not null").fetchone() == (True,)


async def test_a_commit_that_waits_for_a_standby_is_neither_reported_nor_ended(
    without_standby: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    gid = prepare_alone(without_standby)
    async with CellWatch.beside(without_standby.conninfo, SUPERUSER) as cell:
        with monkeypatch.context() as patched:
            patched.setattr("plainsql_server.engine.admin.reaping._END_TIMEOUT_S", 0.5)
            with pytest.raises(EngineError):
                await cell.end_prepared(gid, "postgres", commit=True)
        assert waiting_for_a_standby(without_standby) == 1
        assert not has_table(without_standby)
        # Somebody is at it.
        with pytest.raises(ServiceError, match="busy"):
            await cell.end_prepared(gid, "postgres", commit=True)
        assert await cell.where_prepared(gid) == ["postgres"]
    with without_standby.connect() as admin:
        admin.execute("alter system set synchronous_standby_names = ''")
        admin.execute("select pg_reload_conf()")
    wait_for(lambda: has_table(without_standby), 60, lambda: "it was not committed")


async def test_a_commit_whose_wait_for_a_standby_is_cancelled_is_not_done(without_standby: Postgres) -> None:
    gid = prepare_alone(without_standby)

    async def cancel() -> None:
        await asyncio.to_thread(
            wait_for, lambda: waiting_for_a_standby(without_standby) == 1, 10, lambda: "nobody waits"
        )
        with without_standby.connect() as admin:
            admin.execute("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")

    async with CellWatch.beside(without_standby.conninfo, SUPERUSER) as cell:
        cancelling = asyncio.create_task(cancel())
        with pytest.raises(EngineError):
            await cell.end_prepared(gid, "postgres", commit=True)
        await cancelling


async def test_a_participant_that_recovers_too_late_cannot_commit(
    directory: Directory, database: DatabaseRecord, recovery: Recovery
) -> None:
    id_ = await store_record(directory, database, new_gid(), "open", hold_s=-1)
    await recovery.finish_some()
    assert not await spanning.commit(directory, id_)
    assert not await spanning.end_reading(directory, id_)


async def test_the_outcome_of_a_lost_answer_can_be_looked_up_even_after_the_end(
    directory: Directory, database: DatabaseRecord, recovery: Recovery
) -> None:
    id_ = await store_record(directory, database, new_gid(), "committed", hold_s=-1)
    await recovery.finish_some()
    assert await unfreed(directory) == 0
    assert await spanning.commit(directory, id_)


async def test_an_unavailable_cell_is_waited_for(
    postgres: Postgres, directory: Directory, cell: CellRecord, database: DatabaseRecord, recovery: Recovery,
    *, seen: list[Observation],
) -> None:  # fmt: skip
    gid = prepare(postgres, database)
    id_ = await store_record(directory, database, gid, "committed", hold_s=-1)
    async with directory.connection() as connection:
        await connection.execute("update cells set conninfo = 'host=/nowhere'")
        assert await recovery.finish_some() == 1
        assert [each.event for each in seen] == ["failure"]
        assert await unfreed(directory) == 1
        await connection.execute("update cells set conninfo = %s", (cell.conninfo,))
    await spanning.postpone(directory, id_)
    assert await recovery.finish_some() == 1
    assert is_made(postgres, database)
    assert await unfreed(directory) == 0


def every_connection(postgres: Postgres, database: DatabaseRecord) -> list[psycopg.Connection]:
    """As many as a customer's role may have."""
    taken: list[psycopg.Connection] = []
    while len(taken) <= ROLE_CONNECTION_LIMIT:
        try:
            taken.append(postgres.connect(database.owner_role, database.engine_name))
        except psycopg.OperationalError:
            break
    return taken


async def test_a_customer_that_uses_every_connection_does_not_block_recovery(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, recovery: Recovery
) -> None:
    gid = prepare(postgres, database)
    await store_record(directory, database, gid, "committed", hold_s=-1)
    taken = every_connection(postgres, database)
    assert len(taken) == ROLE_CONNECTION_LIMIT
    await recovery.finish_some()
    for each in taken:
        each.close()
    assert is_made(postgres, database)


async def test_spanning_locks_are_granted_in_order_and_dead_waiters_are_skipped(
    directory: Directory, database: DatabaseRecord
) -> None:
    async def enter(hold_s: float = 60.0) -> tuple[str, SpanningState]:
        new = NewRecord(new_gid(), database.organization_id, new_gid(), [database.id])
        return new.id, await spanning.enter(directory, new, hold_s)

    first, state = await enter()
    assert state is SpanningState.OPEN
    (second, state), (third, _), (fourth, _) = await enter(), await enter(hold_s=-1), await enter()
    assert state is SpanningState.WAITING
    for each in (second, third, fourth):
        assert await spanning.advance(directory, each, 60) is SpanningState.WAITING
    assert await spanning.commit(directory, first)
    assert await spanning.advance(directory, second, 60) is SpanningState.WAITING
    await spanning.free(directory, first)
    assert await spanning.advance(directory, fourth, 60) is SpanningState.WAITING
    assert await spanning.advance(directory, second, 60) is SpanningState.OPEN
    await spanning.give_up(directory, second)
    # The third one's process is gone.
    assert await spanning.advance(directory, fourth, 60) is SpanningState.OPEN


async def test_two_of_an_organization_are_never_open_whatever_the_code_does(
    directory: Directory, database: DatabaseRecord
) -> None:
    await store_record(directory, database, new_gid(), "open")
    with pytest.raises(Exception, match="The service failed") as failure:
        await store_record(directory, database, new_gid(), "committed")
    assert "spanning_one_at_a_time" in failure.value.internal_context  # type: ignore[attr-defined]


async def store_freed(directory: Directory, database: DatabaseRecord, minutes_ago: int) -> None:
    id_ = await store_record(directory, database, new_gid(), "committed", freed=True)
    async with directory.connection() as connection:
        await connection.execute(
            "update spanning_transactions set freed_at = now() - %s * interval '1 min' where id = %s",
            (minutes_ago, id_),
        )


async def count(directory: Directory) -> int:
    async with directory.connection() as connection:
        return (await connection.execute("select from spanning_transactions")).rowcount


async def test_records_are_removed_after_their_retention(directory: Directory, database: DatabaseRecord) -> None:
    for minutes_ago in (1, 11):
        await store_freed(directory, database, minutes_ago)
    await store_record(directory, database, new_gid(), "open")
    await spanning.delete_old(directory, (), ())
    assert await count(directory) == 2


async def set_state(directory: Directory, cell: CellRecord, state: CellState) -> None:
    assert await cells.change(directory, cell.id, CellChange(state=state), only_from=list(CellState))


async def tidied(directory: Directory, recovery: Recovery, expected: int) -> bool:
    """Whether so many records are left after recovery has looked at the cells once."""
    await recovery._tidy()
    return await count(directory) == expected


@pytest.mark.parametrize(("state", "kept"), [("active", 0), ("full", 0), ("down", 1), ("lost", 1)])
async def test_a_decision_is_kept_for_a_cell_that_may_be_restored(
    directory: Directory, cell: CellRecord, database: DatabaseRecord, recovery: Recovery, *, state: str, kept: int
) -> None:
    """It would be as it was before the commit, with the transaction prepared."""
    await store_freed(directory, database, minutes_ago=11)
    aborted = await store_record(directory, database, new_gid(), "aborted", freed=True)
    async with directory.connection() as connection:
        old = "update spanning_transactions set freed_at = now() - interval '11 min' where id = %s"
        await connection.execute(old, (aborted,))
    await set_state(directory, cell, CellState(state))
    assert await tidied(directory, recovery, kept)
    await set_state(directory, cell, CellState.ACTIVE)
    assert await tidied(directory, recovery, 0)


async def test_a_decision_is_kept_for_a_cell_that_does_not_answer(
    directory: Directory, cell: CellRecord, database: DatabaseRecord, recovery: Recovery, tmp_path: Path
) -> None:
    await store_freed(directory, database, minutes_ago=11)
    move = "update cells set conninfo = %s where id = %s"
    async with directory.connection() as connection:
        await connection.execute(move, (f"host={tmp_path}", cell.id))
    assert await tidied(directory, recovery, 1)
    async with directory.connection() as connection:
        await connection.execute(move, (cell.conninfo, cell.id))
    assert await tidied(directory, recovery, 0)


async def test_a_decision_is_kept_until_no_part_is_prepared(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, recovery: Recovery
) -> None:
    """As on a cell that was restored: the transaction was committed there before."""
    gid = prepare(postgres, database)
    id_ = await store_record(directory, database, gid, "committed", freed=True)
    async with directory.connection() as connection:
        old = "update spanning_transactions set freed_at = now() - interval '1 day' where id = %s"
        await connection.execute(old, (id_,))
    assert await tidied(directory, recovery, 1)
    with postgres.connect(database=database.engine_name) as admin:
        admin.execute(f"commit prepared '{gid_of(gid, 0)}'".encode())
    assert await tidied(directory, recovery, 0)


async def test_old_records_are_removed_in_several_batches(
    directory: Directory, database: DatabaseRecord, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spanning, "_REMOVED_AT_ONCE", 2)
    for _ in range(5):
        await store_freed(directory, database, minutes_ago=11)
    working = asyncio.create_task(recovery.run())
    try:
        # Less than the minute between two times of tidying up.
        async with asyncio.timeout(30):
            while await count(directory):  # noqa: ASYNC110  # a database is watched
                await asyncio.sleep(0.05)
    finally:
        await end(working)
