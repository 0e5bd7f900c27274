"""Restores in the directory: claims and their leases, what an ended claim may still change, and limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.errors import ConflictError, EngineError, LimitError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import cells, databases, drafts, organizations
from plainsql_server.directory.branching import branches
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState, NewDatabase
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.restoring.restores import Finished, RestoreLimits, RestoreProgress, RestoreRecord
from plainsql_server.directory.restoring.workers import note_worker

_POINT = datetime(2027, 1, 31, 12, 30, tzinfo=UTC)
_MANY = RestoreLimits(unfinished=100, a_day=100)
_ALIVE_S = 60.0
_RESERVED_S = 3600.0
_GONE = EngineError("restore_unavailable", "No one could restore it.", hint="Try again.")


@dataclass(frozen=True)
class World:
    """A directory with a cell, which nothing connects to, and one organization."""

    directory: Directory
    dsn: str
    cell: CellRecord
    organization_id: str

    def ask(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, arguments)
            return cursor.fetchall() if cursor.description is not None else []

    async def organization(self) -> str:
        made = await organizations.insert(self.directory, new_id(Kind.ORGANIZATION), "other", "free", OPERATOR)
        return made.id

    async def stored(self, name: str, organization_id: str = "", **fields: Any) -> DatabaseRecord:
        """A database that is being created, or a draft."""
        drawn = new_id(Kind.DATABASE)[-24:]
        new = NewDatabase(
            id=new_id(Kind.DATABASE), organization_id=organization_id or self.organization_id, name=name,
            cell_id=self.cell.id, engine_name=f"d_{drawn}", owner_role=f"o_{drawn}", reader_role=f"r_{drawn}",
            branch_of=fields.pop("branch_of", None),
        )  # fmt: skip
        made = await databases.insert(self.directory, new, None, _RESERVED_S, OPERATOR, **fields)
        assert made is not None
        return made

    async def database(self, name: str, organization_id: str = "") -> DatabaseRecord:
        """One that is ready."""
        made = await self.stored(name, organization_id)
        self.ask("UPDATE databases SET state = 'ready', work_after = NULL WHERE id = %s", made.id)
        return await self.again(made)

    async def again(self, database: DatabaseRecord) -> DatabaseRecord:
        found = await databases.find_by_id(self.directory, database.id)
        assert found is not None
        return found

    async def asked(
        self, database: DatabaseRecord, target: DatabaseRecord | None = None, limits: RestoreLimits = _MANY
    ) -> RestoreRecord:
        return await restores.insert(
            self.directory, database, target or database, _POINT, OPERATOR, limits=limits, reserved_s=_RESERVED_S
        )

    async def claimed(self) -> RestoreRecord | None:
        return await restores.claim(self.directory, self.cell.id, _ALIVE_S, _RESERVED_S)

    async def claimed_again(self, restore: RestoreRecord) -> RestoreRecord:
        """What another worker does when the lease has run out."""
        self.ask("UPDATE restores SET alive_until = now() WHERE id = %s", restore.id)
        again = await self.claimed()
        assert again is not None
        assert (again.id, again.attempts) == (restore.id, restore.attempts + 1)
        return again

    async def now(self, restore: RestoreRecord) -> RestoreRecord:
        found = await restores.find(self.directory, restore.id)
        assert found is not None
        return found


@asynccontextmanager
async def world(dsn: str) -> AsyncIterator[World]:
    async with Directory.open(dsn, max_connections=4) as directory:
        cell = await cells.insert(
            directory, new_id(Kind.CELL), "local", "host=/nowhere", "admin", organization_id=None, by=OPERATOR
        )
        owner = await organizations.insert(directory, new_id(Kind.ORGANIZATION), "acme", "free", OPERATOR)
        yield World(directory, dsn, cell, owner.id)


async def claimed_one(made: World) -> RestoreRecord:
    await made.asked(await made.database("main"))
    claimed = await made.claimed()
    assert claimed is not None
    return claimed


async def test_concurrent_claims_get_different_restores_and_each_is_claimed_once(dsn: str) -> None:
    async with world(dsn) as made:
        asked = {(await made.asked(await made.database(f"main-{number}"))).id for number in range(6)}
        claims = await asyncio.gather(*(made.claimed() for _ in range(8)))
        found = [each for each in claims if each is not None]
        assert sorted(each.id for each in found) == sorted(asked)
        assert {(each.state, each.attempts) for each in found} == {("running", 1)}
        assert all(each.started_at is not None for each in found)


async def test_a_worker_of_another_cell_claims_nothing(dsn: str) -> None:
    async with world(dsn) as made:
        await made.asked(await made.database("main"))
        other = await cells.insert(
            made.directory, new_id(Kind.CELL), "other", "host=/nowhere", "admin", organization_id=None, by=OPERATOR
        )
        assert await restores.claim(made.directory, other.id, _ALIVE_S, _RESERVED_S) is None


async def test_who_had_none_of_late_comes_before_who_has_one_running_or_ended(dsn: str) -> None:
    async with world(dsn) as made:
        other = await made.organization()
        for name in ("first", "second"):
            await made.asked(await made.database(name))
        late = await made.asked(await made.database("late", other))
        first = await made.claimed()
        second = await made.claimed()
        assert first is not None
        assert second is not None
        # One of theirs is running.
        assert (first.organization_id, second.id) == (made.organization_id, late.id)
        # The other's ended first.
        assert await restores.fail(made.directory, second, _GONE)
        later = await made.asked(await made.database("later", other))
        assert await restores.fail(made.directory, first, _GONE)
        third = await made.claimed()
        assert third is not None
        assert third.id == later.id


async def test_a_lease_that_is_renewed_is_not_claimed_and_one_that_has_run_out_is(dsn: str) -> None:
    async with world(dsn) as made:
        first = await claimed_one(made)
        made.ask("UPDATE restores SET alive_until = now() + interval '1 s'")
        assert await restores.keep(made.directory, first, RestoreProgress("data"), _ALIVE_S)
        assert made.ask("SELECT alive_until > now() + interval '50 s' FROM restores") == [(True,)]
        assert await made.claimed() is None
        again = await made.claimed_again(first)
        assert again.started_at == first.started_at


async def test_progress_is_noted_and_begins_again_with_each_claim(dsn: str) -> None:
    async with world(dsn) as made:
        first = await claimed_one(made)
        assert await restores.keep(made.directory, first, RestoreProgress("replay", 10, 100, 7), _ALIVE_S)
        now = await made.now(first)
        assert (now.step, now.done_bytes, now.total_bytes, now.seconds_left) == ("replay", 10, 100, 7)
        again = await made.claimed_again(first)
        assert (again.step, again.done_bytes, again.total_bytes, again.seconds_left) == (None, None, None, None)


async def test_a_claim_that_has_ended_changes_nothing(dsn: str) -> None:
    async with world(dsn) as made:
        ended = await claimed_one(made)
        await made.claimed_again(ended)
        draft = await made.stored("draft", as_draft=True)
        before = made.ask("SELECT * FROM restores")
        assert not await restores.keep(made.directory, ended, RestoreProgress("data"), _ALIVE_S)
        assert not await restores.release(made.directory, ended)
        assert not await restores.fail(made.directory, ended, _GONE)
        await restores.note_draft(made.directory, ended, draft.id)
        async with made.directory.connection() as connection, connection.transaction():
            assert not await restores.hold(connection, ended)
            await restores.finish(connection, Finished(ended, 0))
        assert made.ask("SELECT * FROM restores") == before


async def test_a_claim_is_held_until_the_transaction_ends(dsn: str) -> None:
    """Meanwhile, no one else claims it, although the lease has run out, nor cancels it."""
    async with world(dsn) as made:
        mine = await claimed_one(made)
        async with made.directory.connection() as connection, connection.transaction():
            assert await restores.hold(connection, mine)
            assert await made.claimed() is None
            with psycopg.connect(dsn) as other:
                other.execute("SET lock_timeout = '100 ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute("UPDATE restores SET state = 'waiting', alive_until = NULL")
            await restores.finish(connection, Finished(mine, 3))
        done = await made.now(mine)
        assert (done.state, done.missing_transactions, done.attempts) == ("done", 3, 1)


async def test_a_restore_that_is_released_waits_for_the_next_worker(dsn: str) -> None:
    async with world(dsn) as made:
        first = await claimed_one(made)
        assert await restores.release(made.directory, first)
        assert (await made.now(first)).state == "waiting"
        again = await made.claimed()
        assert again is not None
        assert (again.id, again.attempts) == (first.id, 2)


async def reserved(made: World) -> tuple[DatabaseRecord, DatabaseRecord]:
    """A parent, and a branch that is to be filled."""
    parent = await made.database("main")
    return parent, await made.stored("copy", as_draft=True, branch_of=parent.id)


async def test_a_restore_that_fails_gives_up_the_branch_that_was_reserved(dsn: str) -> None:
    async with world(dsn) as made:
        parent, branch = await reserved(made)
        await made.asked(parent, branch)
        claimed = await made.claimed()
        assert claimed is not None
        assert (await made.again(branch)).is_being_branched
        assert await restores.fail(made.directory, claimed, _GONE)
        failed = await made.now(claimed)
        assert (failed.state, failed.error_code, failed.error_hint) == ("failed", _GONE.code, _GONE.hint)
        due = "SELECT work_after <= now(), held_until FROM databases WHERE id = %s"
        assert made.ask(due, branch.id) == [(True, None)]
        assert made.ask(due, parent.id) == [(None, None)]


async def test_a_branch_whose_reservation_has_ended_can_not_be_asked_for(dsn: str) -> None:
    async with world(dsn) as made:
        parent, branch = await reserved(made)
        made.ask("UPDATE databases SET held_until = now() WHERE id = %s", branch.id)
        with pytest.raises(ConflictError, match="was deleted"):
            await made.asked(parent, branch)
        assert made.ask("SELECT FROM restores") == []


async def test_what_is_deleted_has_its_restore_canceled_and_no_other(dsn: str) -> None:
    async with world(dsn) as made:
        asked = [await made.asked(await made.database(name)) for name in ("main", "other")]
        assert await restores.cancel(made.directory, asked[0].target_id, _GONE)
        assert [(await made.now(each)).state for each in asked] == ["failed", "waiting"]
        assert not await restores.cancel(made.directory, asked[0].target_id, _GONE)


@pytest.mark.parametrize(
    ("state", "age_s", "worker_age_s", "fails"),
    [
        ("waiting", 1000, None, True), ("waiting", 1000, 1000, True), ("waiting", 1000, 10, False),
        ("waiting", 100_000, 10, True), ("waiting", 800, None, False),
        ("running", 1000, None, False), ("expired", 1000, None, True), ("expired", 1000, 10, False),
    ],
)  # fmt: skip
async def test_a_restore_without_a_worker_fails_after_a_while(
    dsn: str, state: str, age_s: int, worker_age_s: int | None, fails: bool
) -> None:
    """After 15 minutes if there is none, and after a day if there is one."""
    async with world(dsn) as made:
        asked = await made.asked(await made.database("main"))
        if state != "waiting":
            await made.claimed()
            made.ask(f"UPDATE restores SET alive_until = now() {'-' if state == 'expired' else '+'} interval '1 min'")
        made.ask("UPDATE restores SET updated_at = now() - %s * interval '1 s'", age_s)
        if worker_age_s is not None:
            await note_worker(made.directory, made.cell.id, None)
            made.ask("UPDATE restore_workers SET seen_at = now() - %s * interval '1 s'", worker_age_s)
        assert await restores.fail_unattended(made.directory, 900, 86_400, _GONE) == fails
        assert ((await made.now(asked)).state == "failed") is fails


async def test_the_limits_are_those_of_one_organization(dsn: str) -> None:
    limits = RestoreLimits(unfinished=2, a_day=3)
    async with world(dsn) as made:
        there = [await made.database(f"main-{number}") for number in range(3)]
        for each in there[:2]:
            await made.asked(each, limits=limits)
        with pytest.raises(LimitError, match="2 unfinished"):
            await made.asked(there[2], limits=limits)
        await made.asked(await made.database("main", await made.organization()), limits=limits)
        for _ in range(3):
            claimed = await made.claimed()
            assert claimed is not None
            await restores.fail(made.directory, claimed, _GONE)
        third = await made.asked(there[2], limits=limits)
        await restores.cancel(made.directory, third.target_id, _GONE)
        with pytest.raises(LimitError, match="3 restores in 24 hours"):
            await made.asked(there[2], limits=limits)
        made.ask("UPDATE restores SET created_at = now() - interval '25 h' WHERE id = %s", third.id)
        await made.asked(there[2], limits=limits)


async def test_concurrent_requests_of_an_organization_do_not_pass_its_limit(dsn: str) -> None:
    async with world(dsn) as made:
        there = [await made.database(f"main-{number}") for number in range(8)]
        asking = (made.asked(each, limits=RestoreLimits(unfinished=2, a_day=20)) for each in there)
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(each, RestoreRecord) for each in results) == 2
        assert sum(isinstance(each, LimitError) for each in results) == 6


async def test_a_database_has_one_unfinished_restore(dsn: str) -> None:
    async with world(dsn) as made:
        database = await made.database("main")
        first = await made.asked(database)
        with pytest.raises(ConflictError, match="is being restored already"):
            await made.asked(database)
        await restores.cancel(made.directory, first.target_id, _GONE)
        await made.asked(database)


_SHOWN = "SELECT id, name, state, engine_name, content_since, held_until FROM databases ORDER BY id"


async def test_a_worker_whose_claim_has_ended_replaces_nothing(dsn: str) -> None:
    async with world(dsn) as made:
        ended = await claimed_one(made)
        target = await databases.find_by_id(made.directory, ended.target_id)
        assert target is not None
        draft = await made.stored("draft", as_draft=True)
        mine, before = await made.claimed_again(ended), made.ask(_SHOWN)

        async def replaced(restore: RestoreRecord) -> DatabaseRecord | None:
            return await drafts.replace(
                made.directory, draft, target, without_code=False, restore_s=60, by=OPERATOR,
                finished=Finished(restore, 0),
            )  # fmt: skip

        assert await replaced(ended) is None
        assert (made.ask(_SHOWN), (await made.now(mine)).state) == (before, "running")
        content = await replaced(mine)
        assert content is not None
        assert (content.id, content.engine_name) == (target.id, draft.engine_name)
        assert made.ask("SELECT content_since > %s FROM databases WHERE id = %s", before[0][4], target.id) == [(True,)]
        assert (await made.now(mine)).state == "done"
        # It can't be done twice.
        assert await replaced(mine) is None


async def test_a_worker_whose_claim_has_ended_fills_no_branch(dsn: str) -> None:
    async with world(dsn) as made:
        parent, branch = await reserved(made)
        await made.asked(parent, branch)
        ended = await made.claimed()
        assert ended is not None
        draft = await made.stored("draft", as_draft=True)
        mine, before = await made.claimed_again(ended), made.ask(_SHOWN)
        assert await drafts.fill_branch(made.directory, draft, branch, Finished(ended, 0), OPERATOR) is None
        assert (made.ask(_SHOWN), (await made.now(mine)).state) == (before, "running")
        deleted = replace(branch, state=DatabaseState.DELETED)
        made.ask("UPDATE databases SET state = 'deleted' WHERE id = %s", branch.id)
        assert await drafts.fill_branch(made.directory, draft, deleted, Finished(mine, 0), OPERATOR) is None
        made.ask("UPDATE databases SET state = 'deleting' WHERE id = %s", branch.id)
        assert (made.ask(_SHOWN), (await made.now(mine)).state) == (before, "running")
        filled = await drafts.fill_branch(made.directory, draft, branch, Finished(mine, 0), OPERATOR)
        assert filled is not None
        assert (filled.state, filled.engine_name) == ("ready", draft.engine_name)
        assert (await made.now(mine)).state == "done"


async def test_a_branch_with_a_restore_is_not_withdrawn(dsn: str) -> None:
    """The request for it may have been cancelled while the answer to storing the restore was on its way."""
    async with world(dsn) as made:
        parent, branch = await reserved(made)
        statement = "SELECT branch_of, held_until IS NULL FROM databases WHERE id = %s"
        await made.asked(parent, branch)
        assert not await branches.withdraw(made.directory, branch.id)
        assert made.ask(statement, branch.id) == [(parent.id, False)]
        failed = "state = 'failed', ended_at = now(), error_code = 'x', error_message = 'x'"
        made.ask(f"UPDATE restores SET {failed} WHERE target_id = %s", branch.id)
        assert await branches.withdraw(made.directory, branch.id)
        assert made.ask(statement, branch.id) == [(None, True)]


async def test_a_restore_that_is_being_stored_while_its_branch_is_withdrawn_keeps_it(dsn: str) -> None:
    async with world(dsn) as made:
        parent, branch = await reserved(made)
        async with made.directory.connection() as storing, storing.transaction():
            await storing.execute("UPDATE databases SET work_after = now() WHERE id = %s", (branch.id,))
            withdrawing = asyncio.create_task(branches.withdraw(made.directory, branch.id))
            waiting = "SELECT FROM pg_locks WHERE NOT granted"
            while not (await storing.execute(waiting)).rowcount:
                assert not withdrawing.done()
                await asyncio.sleep(0.01)
            await storing.execute(
                "INSERT INTO restores (id, organization_id, database_id, target_id, cell_id, point, actor_kind)"
                " VALUES ('rst_1', %s, %s, %s, %s, now(), 'operator')",
                (parent.organization_id, parent.id, branch.id, branch.cell_id),
            )
        assert not await withdrawing


async def test_a_branch_whose_claim_has_ended_is_not_renewed_and_not_completed(dsn: str) -> None:
    """Another process may be dropping its copy."""
    async with world(dsn) as made:
        parent, branch = await reserved(made)
        assert await branches.put_off(made.directory, branch.id, 8)
        made.ask("UPDATE databases SET held_until = now() WHERE id = %s", branch.id)
        before = made.ask(_SHOWN)
        assert not await branches.put_off(made.directory, branch.id, 8)
        assert not await branches.complete(made.directory, branch, parent, OPERATOR)
        assert made.ask(_SHOWN) == before
        made.ask("UPDATE databases SET held_until = now() + interval '1 s' WHERE id = %s", branch.id)
        assert await branches.complete(made.directory, branch, parent, OPERATOR)
        assert (await made.again(branch)).state == "ready"
