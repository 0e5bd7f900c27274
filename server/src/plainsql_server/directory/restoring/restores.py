"""Restores in the directory: databases that customers want as they were at a point in time.

A restore waits until a worker of the cell claims it (`operations/point_in_time/worker.py`), and the worker renews its
lease. When the lease runs out, another worker claims it. Each claim has a number, and a worker whose claim is not the
last one can change nothing any more. One transaction publishes what was restored and ends the restore.

If the target is a branch, it is reserved meanwhile: a draft of which nothing exists on a cell, and which customers see
as one that is being created. A restore that fails gives it up, in the same transaction.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import errors

from plainsql_server.core.actor import Actor, id_of
from plainsql_server.core.errors import ConflictError, LimitError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory, DirectoryConnection
from plainsql_server.directory.databases import DatabaseRecord

_COLUMNS = """
    id, organization_id, database_id, target_id, cell_id, point, state, actor_kind, actor_id, request_id, attempts,
    step, done_bytes, total_bytes, seconds_left, replaced_id, missing_transactions, error_code, error_message,
    error_hint, created_at, started_at, ended_at
"""
_UNFINISHED = "state IN ('waiting', 'running')"
_IS_MINE = "id = %(id)s AND state = 'running' AND attempts = %(attempts)s"
_IS_DRAFT = "state = 'deleting' AND restores_to IS NULL"


class RestoreState(StrEnum):
    """The state of a restore: waiting → running → done or failed."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """A stored restore."""

    id: str
    organization_id: str
    database_id: str
    target_id: str
    """The database that gets the content: the same one, or a branch."""
    cell_id: str
    """The cell whose archive has the content."""
    point: datetime
    state: RestoreState
    actor_kind: str
    actor_id: str | None
    request_id: str | None
    attempts: int
    """How often it was claimed."""
    step: str | None
    done_bytes: int | None
    total_bytes: int | None
    seconds_left: int | None
    replaced_id: str | None
    """The draft that is being filled. When the restore is done, it has the replaced content, unless for a branch."""
    missing_transactions: int | None
    error_code: str | None
    error_message: str | None
    error_hint: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def is_branch(self) -> bool:
        return self.target_id != self.database_id

    @property
    def by(self) -> Actor:
        """Who asked for it."""
        return Actor(self.actor_kind, self.actor_id, self.request_id)


@dataclass(frozen=True, slots=True)
class RestoreLimits:
    """How many restores an organization may have."""

    unfinished: int
    a_day: int


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far a restore is: the step, and of it the bytes and the time, where they are known."""

    step: str
    done_bytes: int | None = None
    total_bytes: int | None = None
    seconds_left: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A restore that is done as soon as its content is published."""

    restore: RestoreRecord
    missing_transactions: int
    """How many transactions were prepared at that time, and neither committed nor rolled back. They are missing."""


async def insert(
    directory: Directory, database: DatabaseRecord, target: DatabaseRecord, point: datetime, by: Actor, *,
    limits: RestoreLimits, reserved_s: float,
) -> RestoreRecord:  # fmt: skip
    """Stores a restore that waits. If its target is a branch, it is reserved for `reserved_s`.

    Raises LimitError if the organization has reached a limit, and ConflictError if the database has an unfinished
    restore, or if the branch is gone.
    """
    statement = f"""
        INSERT INTO restores (id, organization_id, database_id, target_id, cell_id, point, actor_kind, actor_id,
            request_id) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING {_COLUMNS}
    """
    organization_id = database.organization_id
    values = (
        new_id(Kind.RESTORE), organization_id, database.id, target.id, database.cell_id, point, by.kind, id_of(by),
        by.request_id,
    )  # fmt: skip
    async with directory.connection() as connection, connection.transaction():
        # Requests of one organization wait for each other here, so the count stays correct.
        await connection.execute("SELECT FROM organizations WHERE id = %s FOR NO KEY UPDATE", (organization_id,))
        await _check_limits(connection, organization_id, limits)
        try:
            row = await (await connection.execute(statement, values)).fetchone()
        except errors.UniqueViolation as error:
            raise ConflictError(
                "restore_under_way", f"The database {database.name!r} is being restored already.",
                hint="Wait until that restore has ended: GET /v1/restores.",
            ) from error  # fmt: skip
        made = _record(row)
        if made.is_branch and not await _reserve(connection, made, reserved_s):
            raise ConflictError("wrong_state", f"The database {target.name!r} was deleted.")
        details = {"restore_id": made.id, "at": point.isoformat()}
        details |= {"branch_id": target.id} if made.is_branch else {}
        await audit.note(connection, by, "database.restore_at", organization_id, database.id, **details)
        return made


async def find(directory: Directory, restore_id: str, organization_id: str | None = None) -> RestoreRecord | None:
    """The restore with that id; None if there is none, or not in that organization."""
    statement = f"SELECT {_COLUMNS} FROM restores WHERE id = %s AND (%s::text IS NULL OR organization_id = %s)"
    async with directory.connection() as connection:
        row = await (await connection.execute(statement, (restore_id, organization_id, organization_id))).fetchone()
    return _record(row) if row else None


async def list_(
    directory: Directory, organization_id: str | None, limit: int, before: str | None = None
) -> list[RestoreRecord]:
    """The restores of an organization, or of all, newest first, starting before the restore `before`."""
    statement = f"""
        SELECT {_COLUMNS} FROM restores
        WHERE (%(organization)s::text IS NULL OR organization_id = %(organization)s)
          AND (%(before)s::text IS NULL OR id < %(before)s)
        ORDER BY id DESC LIMIT %(limit)s
    """
    values = {"organization": organization_id, "before": before, "limit": limit}
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, values)).fetchall()
    return [_record(row) for row in rows]


async def count_replaced(directory: Directory, organization_id: str) -> int:
    """How many databases of an organization have content that restores have replaced, and still take room."""
    statement = """
        SELECT count(*) AS n FROM restores r JOIN databases d ON d.id = r.replaced_id
        WHERE r.organization_id = %s AND r.state = 'done' AND r.target_id = r.database_id AND d.state <> 'deleted'
    """
    async with directory.connection() as connection:
        row = await (await connection.execute(statement, (organization_id,))).fetchone()
    return int(row["n"]) if row else 0


async def replaced_lately(directory: Directory, cell_id: str, within_s: float) -> list[str]:
    """The databases that have content which restores from a cell's archive have replaced lately, by their ids."""
    statement = """
        SELECT r.replaced_id FROM restores r JOIN databases d ON d.id = r.replaced_id
        WHERE r.cell_id = %s AND r.state = 'done' AND r.target_id = r.database_id AND d.state <> 'deleted'
          AND r.ended_at > now() - %s * interval '1 s'
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (cell_id, within_s))).fetchall()
    return [row["replaced_id"] for row in rows]


async def claim(directory: Directory, cell_id: str, alive_s: float, reserved_s: float) -> RestoreRecord | None:
    """Claims a restore of the cell that waits, or whose worker has died. Concurrent callers get different ones.

    The organization that has had the fewest of late comes first, so that no one waits for another's long queue.
    """
    statement = f"""
        UPDATE restores SET state = 'running', attempts = attempts + 1, alive_until = now() + %(alive_s)s
            * interval '1 s', started_at = coalesce(started_at, now()), updated_at = now(), step = NULL,
            done_bytes = NULL, total_bytes = NULL, seconds_left = NULL
        WHERE id = (
            SELECT id FROM restores r
            WHERE cell_id = %(cell_id)s AND (state = 'waiting' OR state = 'running' AND alive_until <= now())
            ORDER BY (SELECT count(*) FROM restores o WHERE o.organization_id = r.organization_id
                        AND o.state = 'running' AND o.alive_until > now()),
                     (SELECT max(ended_at) FROM restores o WHERE o.organization_id = r.organization_id) NULLS FIRST,
                     created_at
            LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING {_COLUMNS}
    """
    async with directory.connection() as connection, connection.transaction():
        row = await (await connection.execute(statement, {"cell_id": cell_id, "alive_s": alive_s})).fetchone()
        if row is None:
            return None
        claimed = _record(row)
        if claimed.is_branch:
            await _reserve(connection, claimed, reserved_s)
        return claimed


async def keep(directory: Directory, restore: RestoreRecord, progress: RestoreProgress, alive_s: float) -> bool:
    """Renews the lease of a restore, and notes how far it is. Returns False if the claim has ended."""
    statement = f"""
        UPDATE restores SET alive_until = now() + %(alive_s)s * interval '1 s', updated_at = now(), step = %(step)s,
            done_bytes = %(done)s, total_bytes = %(total)s, seconds_left = %(left)s WHERE {_IS_MINE}
    """
    values = {
        **_mine(restore), "alive_s": alive_s, "step": progress.step, "done": progress.done_bytes,
        "total": progress.total_bytes, "left": progress.seconds_left,
    }  # fmt: skip
    async with directory.connection() as connection:
        return (await connection.execute(statement, values)).rowcount == 1


async def note_draft(directory: Directory, restore: RestoreRecord, draft_id: str) -> None:
    """Notes which draft is being filled, so that its customer doesn't see it."""
    statement = f"UPDATE restores SET replaced_id = %(draft)s WHERE {_IS_MINE}"
    async with directory.connection() as connection:
        await connection.execute(statement, {**_mine(restore), "draft": draft_id})


async def release(directory: Directory, restore: RestoreRecord) -> bool:
    """Lets a restore wait again, because its worker ends. Returns False if the claim has ended."""
    statement = f"""
        UPDATE restores SET state = 'waiting', alive_until = NULL, updated_at = now(), step = NULL, done_bytes = NULL,
            total_bytes = NULL, seconds_left = NULL WHERE {_IS_MINE}
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, _mine(restore))).rowcount == 1


async def hold(connection: DirectoryConnection, restore: RestoreRecord) -> bool:
    """Keeps the claim from ending before the transaction does. Returns False if it has ended.

    Call it first in the transaction that publishes the content.
    """
    found = await connection.execute(f"SELECT FROM restores WHERE {_IS_MINE} FOR NO KEY UPDATE", _mine(restore))
    return found.rowcount == 1


async def finish(connection: DirectoryConnection, finished: Finished) -> None:
    """Marks a restore as done that the transaction holds."""
    statement = f"""
        UPDATE restores SET state = 'done', alive_until = NULL, updated_at = now(), ended_at = now(), step = NULL,
            done_bytes = NULL, total_bytes = NULL, seconds_left = NULL, missing_transactions = %(missing)s
        WHERE {_IS_MINE}
    """
    values = {**_mine(finished.restore), "missing": finished.missing_transactions}
    await connection.execute(statement, values)


async def fail(directory: Directory, restore: RestoreRecord, error: ServiceError) -> bool:
    """Marks a restore as failed, for a reason that its customer sees. Returns False if the claim has ended."""
    return bool(await _fail(directory, _IS_MINE, _mine(restore), error))


async def cancel(directory: Directory, target_id: str, error: ServiceError) -> bool:
    """Marks the restore of a database as failed, because the database is being deleted. False if there is none."""
    return bool(await _fail(directory, f"target_id = %(id)s AND {_UNFINISHED}", {"id": target_id}, error))


async def fail_unattended(directory: Directory, unseen_s: float, waited_s: float, error: ServiceError) -> int:
    """Marks restores as failed that no worker can take up, or that have waited for too long. Returns how many."""
    condition = f"""
        {_UNFINISHED} AND (state = 'waiting' OR alive_until <= now())
        AND updated_at < now() - %(unseen_s)s * interval '1 s'
        AND (updated_at < now() - %(waited_s)s * interval '1 s' OR NOT EXISTS (
            SELECT FROM restore_workers w
            WHERE w.cell_id = restores.cell_id AND w.seen_at > now() - %(unseen_s)s * interval '1 s'))
    """
    return await _fail(directory, condition, {"unseen_s": unseen_s, "waited_s": waited_s}, error)


async def delete_old(directory: Directory, kept_s: float) -> None:
    """Forgets restores that ended so long ago."""
    async with directory.connection() as connection:
        await connection.execute("DELETE FROM restores WHERE ended_at < now() - %s * interval '1 s'", (kept_s,))


async def _fail(directory: Directory, condition: str, values: dict[str, Any], error: ServiceError) -> int:
    statement = f"""
        UPDATE restores SET state = 'failed', alive_until = NULL, updated_at = now(), ended_at = now(), step = NULL,
            done_bytes = NULL, total_bytes = NULL, seconds_left = NULL, error_code = %(code)s,
            error_message = %(message)s, error_hint = %(hint)s
        WHERE {condition} RETURNING {_COLUMNS}
    """
    # The branch that was reserved is dropped soon, and frees its name.
    given_up = f"UPDATE databases SET work_after = now(), held_until = NULL WHERE id = %s AND {_IS_DRAFT}"
    values = {**values, "code": error.code, "message": error.message, "hint": error.hint}
    async with directory.connection() as connection, connection.transaction():
        failed = [_record(row) for row in await (await connection.execute(statement, values)).fetchall()]
        for each in failed:
            if each.is_branch:
                await connection.execute(given_up, (each.target_id,))
    return len(failed)


async def _reserve(connection: DirectoryConnection, restore: RestoreRecord, reserved_s: float) -> bool:
    statement = f"""
        UPDATE databases SET (work_after, held_until) = (SELECT until, until FROM (
            SELECT now() + %s * interval '1 s' AS until) AS reserved)
        WHERE id = %s AND {_IS_DRAFT} AND held_until > now()
    """
    return (await connection.execute(statement, (reserved_s, restore.target_id))).rowcount == 1


async def _check_limits(connection: DirectoryConnection, organization_id: str, limits: RestoreLimits) -> None:
    counted = f"""
        SELECT count(*) FILTER (WHERE {_UNFINISHED}) AS unfinished,
               count(*) FILTER (WHERE created_at > now() - interval '1 day') AS a_day
        FROM restores WHERE organization_id = %s
    """
    row = await (await connection.execute(counted, (organization_id,))).fetchone()
    assert row is not None
    if row["unfinished"] >= limits.unfinished:
        raise LimitError(
            "restore_limit", f"Your organization has {limits.unfinished} unfinished restores, and may have no more.",
            hint="Wait until one of them has ended: GET /v1/restores.",
        )  # fmt: skip
    if row["a_day"] >= limits.a_day:
        raise LimitError("restore_limit", f"Your organization may ask for {limits.a_day} restores in 24 hours.")


def _mine(restore: RestoreRecord) -> dict[str, Any]:
    return {"id": restore.id, "attempts": restore.attempts}


def _record(row: dict[str, Any] | None) -> RestoreRecord:
    assert row is not None
    return RestoreRecord(**{**row, "state": RestoreState(row["state"])})
