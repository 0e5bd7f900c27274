"""Databases in the directory: customers' databases, their locations and their two engine roles.

Reads and writes the tables `databases` and `roles`, which are always written together. The caller of a change passes
the states from which it is allowed. Each change is one conditional UPDATE, so of two conflicting changes only one
succeeds.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from psycopg import errors

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import AccessError, ConflictError
from plainsql_server.core.names import DATABASE_ID
from plainsql_server.directory import audit
from plainsql_server.directory.branching.daily_limit import DailyLimit, check_daily_limit
from plainsql_server.directory.cells import CellState
from plainsql_server.directory.connection import Directory, DirectoryConnection
from plainsql_server.directory.sealing.keyring import SCHEME
from plainsql_server.directory.sealing.neighbours import check_can_seal

_SELECT = """
    SELECT d.id, d.organization_id, d.name, d.state, d.is_default, d.plain AS without_code, d.engine_name,
           d.record_secret, d.created_at, d.branch_of, d.expires_at,
           o.engine_name AS owner_role, r.engine_name AS reader_role,
           d.cell_id, c.name AS cell_name, c.conninfo AS cell_conninfo, c.state AS cell_state,
           coalesce(d.held_until > now(), false) AS is_held, d.restorable_until, d.restores_to
    FROM databases d
    JOIN cells c ON c.id = d.cell_id
    JOIN roles o ON o.database_id = d.id AND o.kind = 'owner'
    JOIN roles r ON r.database_id = d.id AND r.kind = 'reader'
"""
# Copies that a move creates or leaves behind do not count as the customer's databases, nor what a restore fills.
_NO_COPY = """NOT EXISTS (SELECT FROM moves WHERE copy_id = d.id) AND NOT EXISTS (
    SELECT FROM restores WHERE replaced_id = d.id AND (state <> 'done' OR target_id <> database_id))"""


class DatabaseState(StrEnum):
    """The state of a database: creating → ready → deleting → deleted, or suspended or failed."""

    CREATING = "creating"
    READY = "ready"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"


States = Collection[DatabaseState]


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """A stored database, with what is needed to connect to it as one of its roles."""

    id: str
    organization_id: str
    name: str
    state: DatabaseState
    is_default: bool
    without_code: bool
    """Whether it is a database without code (functions, triggers, …). Decides how connections are reset."""
    engine_name: str
    record_secret: str
    """The secret needed to use the database's record of requests (`engine/execution/records.py`), as it is stored:
    open it with the directory's `secrets`."""
    owner_role: str
    reader_role: str
    cell_id: str
    cell_name: str
    cell_conninfo: str
    cell_state: CellState
    is_held: bool
    """Whether requests must wait because it is about to switch to another cell; see `directory/moves.py`."""
    created_at: datetime
    restorable_until: datetime | None
    restores_to: DatabaseState | None
    """The state after a restore; None if it cannot be restored."""
    branch_of: str | None
    """The id of the database that it was copied from as a branch; None if it is no branch."""
    expires_at: datetime | None
    """When it is deleted without being asked for; None if never."""

    @property
    def is_being_branched(self) -> bool:
        """Whether it is a branch that is still being copied: a held draft (`directory/branching/branches.py`)."""
        is_draft = self.state is DatabaseState.DELETING and self.restores_to is None
        return is_draft and self.branch_of is not None and self.is_held


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDatabase:
    """A database to store."""

    id: str
    organization_id: str
    name: str
    cell_id: str
    engine_name: str
    owner_role: str
    reader_role: str
    branch_of: str | None = None
    expires_at: datetime | None = None


async def insert(
    directory: Directory, new: NewDatabase, at_most: int | None, claim_s: float, by: Actor, *,
    as_draft: bool = False, audited: bool = True, adopted: bool = False, branches: DailyLimit | None = None,
) -> DatabaseRecord | None:  # fmt: skip
    """Stores a database in state creating. It becomes the organization's default if there is none yet.

    For `claim_s`, only its creator may finish it; or fill it, if it is a draft (`directory/drafts.py`). Returns None,
    and stores nothing, if the organization already has `at_most` databases. One that is `adopted` exists on its cell
    and may contain code. Raises ConflictError if the name is taken, LimitError if it is a branch and the organization
    has made all that `branches` allows, and `key_missing` if its secret can't be sealed as others are.
    """
    async with directory.connection() as connection, connection.transaction():
        await check_can_seal(connection, directory.secrets, by)
        # Creations of one organization wait for each other here, so the count stays correct.
        await _lock_organization(connection, new.organization_id)
        if at_most is not None and await _count(connection, new.organization_id) >= at_most:
            return None
        if branches is not None and new.branch_of is not None:
            await check_daily_limit(connection, new.organization_id, branches)
        await _insert_rows(connection, new, claim_s, directory.secrets.new(new.engine_name))
        if as_draft:
            draft = """
                UPDATE databases SET state = 'deleting', is_default = false, plain = false,
                    held_until = CASE WHEN branch_of IS NOT NULL THEN work_after END WHERE id = %s
            """
            await connection.execute(draft, (new.id,))
        if adopted:
            await connection.execute("UPDATE databases SET plain = false WHERE id = %s", (new.id,))
        if audited:
            action = "database.adopt" if adopted else "database.create"
            details = {} if new.branch_of is None else {"branch_of": new.branch_of}
            await audit.note(connection, by, action, new.organization_id, new.id, name=new.name, **details)
        return await _get(connection, new.id)


async def find(directory: Directory, organization_id: str, name: str | None) -> DatabaseRecord | None:
    """An organization's database with that name or id, or its default for None. Returns None if there is none."""
    if name is None:
        return await _find_where(directory, "d.organization_id = %s AND d.is_default", (organization_id,))
    condition = "d.organization_id = %s AND d.name = %s AND d.state <> 'deleted'"
    if not DATABASE_ID.match(name):
        return await _find_where(directory, condition, (organization_id, name))
    # An old database may have a name of this form. The id takes precedence.
    by_either = f"""
        d.organization_id = %s AND (d.name = %s OR d.id = %s) AND d.state <> 'deleted' AND {_NO_COPY}
        ORDER BY d.id = %s DESC LIMIT 1
    """
    return await _find_where(directory, by_either, (organization_id, name, name, name))


async def find_by_id(
    directory: Directory, database_id: str, organization_id: str | None = None
) -> DatabaseRecord | None:
    """The database with that id, even if it is deleted. None if there is none, or not in that organization."""
    found = await _find_where(directory, "d.id = %s", (database_id,))
    return found if found is None or organization_id in (None, found.organization_id) else None


async def find_by_engine_name(directory: Directory, engine_name: str) -> DatabaseRecord | None:
    """The database with that name on its cell, even if it is deleted; None if there is none."""
    return await _find_where(directory, "d.engine_name = %s", (engine_name,))


async def content_since(directory: Directory, database_id: str) -> datetime:
    """Since when the database has its content on its cell: since it was created, filled, replaced or moved."""
    async with directory.connection() as connection:
        statement = "SELECT content_since FROM databases WHERE id = %s"
        row = await (await connection.execute(statement, (database_id,))).fetchone()
    assert row is not None
    since: datetime = row["content_since"]
    return since


async def list_by_owner_role(directory: Directory, role: str) -> list[DatabaseRecord]:
    """The database whose owner is called so on its cell, even if it is deleted, then those that had the role before.

    A move or a replacement leaves the role to the old content, which has a row of its own.
    """
    # The audit log forgets a replacement after `audit.KEPT`.
    statement = f"""
        WITH RECURSIVE had AS (
            SELECT database_id AS id, 0 AS changes FROM roles WHERE kind = 'owner' AND engine_name = %s
            UNION ALL
            SELECT before.id, changes + 1 FROM had, LATERAL (
                SELECT database_id AS id FROM moves WHERE copy_id = had.id
                UNION ALL
                SELECT target_id FROM audit
                WHERE action = 'database.restore_backup' AND details ->> 'replaced_id' = had.id) before)
        {_SELECT} JOIN had ON had.id = d.id ORDER BY had.changes
    """
    async with directory.connection() as connection:
        return [_record(row) for row in await (await connection.execute(statement, (role,))).fetchall()]


async def list_(
    directory: Directory, organization_id: str, limit: int | None = None, after: str | None = None
) -> list[DatabaseRecord]:
    """An organization's databases, oldest first, without deleted ones, starting after `after`."""
    statement = f"""
        {_SELECT} WHERE d.organization_id = %s AND d.state <> 'deleted' AND {_NO_COPY}
          AND (%s::text IS NULL OR d.id > %s)
        ORDER BY d.id LIMIT %s
    """
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, (organization_id, after, after, limit))
        return [_record(row) for row in await cursor.fetchall()]


async def list_of_cell(directory: Directory, cell_id: str) -> list[DatabaseRecord]:
    """The databases of a cell, oldest first, without deleted ones and without copies."""
    statement = f"{_SELECT} WHERE d.cell_id = %s AND d.state <> 'deleted' AND {_NO_COPY} ORDER BY d.id"
    async with directory.connection() as connection:
        return [_record(row) for row in await (await connection.execute(statement, (cell_id,))).fetchall()]


async def set_state(
    directory: Directory, database_id: str, state: DatabaseState, *, only_from: States, action: str, by: Actor
) -> DatabaseRecord | None:
    """Sets a database's state. Returns None, and changes nothing, if it was in none of the states `only_from`."""
    # What is being created is not complete yet.
    statement = """
        UPDATE databases SET state = %s, work_after = NULL,
            content_since = CASE state WHEN 'creating' THEN now() ELSE content_since END
        WHERE id = %s AND state = ANY(%s)
    """
    arguments = (state, database_id, _names(only_from))
    return await _change(directory, database_id, statement, arguments, action, by=by)


async def begin_deletion(
    directory: Directory, database_id: str, *, only_from: States, restorable: States, restore_s: float, by: Actor
) -> DatabaseRecord | None:
    """Starts to delete a database. It is dropped after `restore_s`, or soon if its state was not in `restorable`.

    Returns None if it was in none of the states `only_from`.
    """
    statement = """
        UPDATE databases
        SET state = 'deleting',
            restores_to = CASE WHEN state = ANY(%(restorable)s) THEN state END,
            restorable_until = CASE WHEN state = ANY(%(restorable)s) THEN now() + %(restore_s)s * interval '1 s' END,
            work_after = CASE WHEN state = ANY(%(restorable)s) THEN now() + %(restore_s)s * interval '1 s'
                              ELSE now() END
        WHERE id = %(id)s AND state = ANY(%(from)s)
    """
    arguments = {
        "id": database_id, "from": _names(only_from), "restorable": _names(restorable), "restore_s": restore_s,
    }  # fmt: skip
    return await _change(directory, database_id, statement, arguments, "database.delete", by=by)


async def give_up(directory: Directory, database_id: str, by: Actor) -> DatabaseRecord | None:
    """Makes a deletion permanent. Returns None if the database is not being deleted or could not be restored anyway."""
    statement = """
        UPDATE databases SET restores_to = NULL, restorable_until = NULL, work_after = now()
        WHERE id = %s AND state = 'deleting' AND restores_to IS NOT NULL
    """
    return await _change(directory, database_id, statement, (database_id,), "database.give_up", by=by)


async def restore(directory: Directory, database_id: str, by: Actor) -> DatabaseRecord | None:
    """Restores a database that is being deleted, without an expiry that has passed. Returns None if it can't be."""
    statement = """
        UPDATE databases SET state = restores_to, restores_to = NULL, restorable_until = NULL, work_after = NULL,
            expires_at = CASE WHEN expires_at > now() THEN expires_at END
        WHERE id = %s AND state = 'deleting' AND restores_to IS NOT NULL AND restorable_until > now()
    """
    return await _change(directory, database_id, statement, (database_id,), "database.restore", by=by)


async def set_deleted(directory: Directory, database_id: str, by: Actor) -> DatabaseRecord | None:
    """Marks a database as deleted: its name is free, and keys and sessions bound to it end. None if it was not due."""
    statement = """
        UPDATE databases SET state = 'deleted', is_default = false, work_after = NULL
        WHERE id = %s AND state = 'deleting' AND restores_to IS NULL
    """
    async with directory.connection() as connection, connection.transaction():
        changed = await connection.execute(statement, (database_id,))
        if changed.rowcount == 0:
            return None
        ended = "UPDATE {} SET {} = now() WHERE database_id = %s AND {} IS NULL"
        for table, column in (("api_keys", "revoked_at"), ("sessions", "ended_at")):
            await connection.execute(ended.format(table, column, column), (database_id,))
        record = await _get(connection, database_id)
        if not (await connection.execute("SELECT FROM moves WHERE copy_id = %s", (database_id,))).rowcount:
            await audit.note(connection, by, "database.drop", record.organization_id, database_id)
        return record


async def rename(
    directory: Directory, database_id: str, name: str, *, only_from: States, by: Actor
) -> DatabaseRecord | None:
    """Renames a database. Returns None if it is in none of those states. Raises ConflictError if the name is taken."""
    statement = "UPDATE databases SET name = %s WHERE id = %s AND state = ANY(%s)"
    arguments = (name, database_id, _names(only_from))
    try:
        return await _change(directory, database_id, statement, arguments, "database.rename", by=by, name=name)
    except ConflictError:
        raise _taken(name) from None


async def make_default(
    directory: Directory, database_id: str, organization_id: str, *, only_from: States, by: Actor
) -> DatabaseRecord | None:
    """Makes a database its organization's default. Returns None if it is in none of those states."""
    async with directory.connection() as connection, connection.transaction():
        if not await _make_default(connection, database_id, organization_id, only_from, by):
            return None
        return await _get(connection, database_id)


async def rename_and_make_default(
    directory: Directory, database_id: str, organization_id: str, name: str, *, only_from: States, by: Actor
) -> DatabaseRecord | None:
    """Both `rename` and `make_default`, or neither."""
    async with directory.connection() as connection, connection.transaction():
        if not await _make_default(connection, database_id, organization_id, only_from, by):
            return None
        try:
            await connection.execute("UPDATE databases SET name = %s WHERE id = %s", (name, database_id))
        except errors.UniqueViolation as error:
            raise _taken(name) from error
        await audit.note(connection, by, "database.rename", organization_id, database_id, name=name)
        return await _get(connection, database_id)


async def _make_default(
    connection: DirectoryConnection, database_id: str, organization_id: str, only_from: States, by: Actor
) -> bool:
    """Makes it the default, within a transaction. Returns whether that was possible."""
    possible = "SELECT FROM databases WHERE id = %s AND organization_id = %s AND state = ANY(%s) FOR NO KEY UPDATE"
    await _lock_organization(connection, organization_id)
    found = await connection.execute(possible, (database_id, organization_id, _names(only_from)))
    if found.rowcount == 0:
        return False
    await connection.execute(
        "UPDATE databases SET is_default = false WHERE organization_id = %s AND is_default", (organization_id,)
    )
    # A branch that was made the default is no longer one to throw away.
    await connection.execute("UPDATE databases SET is_default = true, expires_at = NULL WHERE id = %s", (database_id,))
    await audit.note(connection, by, "database.make_default", organization_id, database_id)
    return True


async def claim_unfinished(directory: Directory, limit: int, claim_s: float) -> list[DatabaseRecord]:
    """Claims databases with an unfinished creation or deletion, for `claim_s`.

    Concurrent callers get different databases. If a caller dies, its claims expire. What is on a cell that is down or
    lost waits until the cell is back. A creation whose secret this process can't open is left to one that can.
    """
    statement = """
        UPDATE databases SET work_after = now() + %s * interval '1 s'
        WHERE id IN (
            SELECT d.id FROM databases d JOIN cells c ON c.id = d.cell_id
            WHERE d.work_after <= now() AND c.state NOT IN ('down', 'lost') AND (
                d.state = 'deleting' OR d.state = 'creating' AND CASE
                    WHEN starts_with(d.record_secret, %s) THEN split_part(d.record_secret, ':', 2) = ANY(%s)
                    ELSE %s END)
            ORDER BY d.work_after LIMIT %s FOR UPDATE OF d SKIP LOCKED)
        RETURNING id
    """
    secrets = directory.secrets
    values = (claim_s, f"{SCHEME}:", secrets.key_ids, not secrets.refuses_unsealed, limit)
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, values)).fetchall()
        cursor = await connection.execute(f"{_SELECT} WHERE d.id = ANY(%s)", ([row["id"] for row in rows],))
        return [_record(row) for row in await cursor.fetchall()]


async def ready_on(directory: Directory, cell_id: str) -> list[DatabaseRecord]:
    """The ready databases of a cell."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} WHERE d.cell_id = %s AND d.state = 'ready'", (cell_id,))
        return [_record(row) for row in await cursor.fetchall()]


async def is_due_for_dropping(directory: Directory, database_id: str, engine_name: str) -> bool:
    """Whether to drop a database from its cell now. If True, it can no longer be restored.

    The caller passes the name to drop, because the database may have been swapped with another one meanwhile.
    """
    statement = """
        UPDATE databases SET restores_to = NULL
        WHERE id = %s AND engine_name = %s AND state = 'deleting'
          AND (restores_to IS NULL OR restorable_until <= now())
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, (database_id, engine_name))).rowcount == 1


async def hold(connection: DirectoryConnection, database_id: str) -> None:
    """Prevents the deletion of a database until the end of the transaction. Raises AccessError if it is deleted.

    Call it first when you bind a credential to a database. A deletion then happens either entirely before, and is
    noticed here, or entirely after, and ends the credential.
    """
    statement = "SELECT FROM databases WHERE id = %s AND state <> 'deleted' FOR SHARE"
    if (await connection.execute(statement, (database_id,))).rowcount == 0:
        raise AccessError("database_not_found", f"There is no database {database_id!r}.")


async def set_has_code(directory: Directory, database_id: str) -> None:
    """Records that the database may contain code. This is never reset."""
    async with directory.connection() as connection:
        await connection.execute("SELECT note_code(%s)", (database_id,))


async def _change(
    directory: Directory, database_id: str, statement: str, arguments: Any, action: str, *, by: Actor, **details: Any
) -> DatabaseRecord | None:
    """Runs an UPDATE of one database and audits it. Returns None if it changed nothing."""
    async with directory.connection() as connection, connection.transaction():
        try:
            changed = await connection.execute(statement, arguments)
        except errors.UniqueViolation as error:
            raise ConflictError("name_taken", "This name is already taken.") from error
        if changed.rowcount == 0:
            return None
        record = await _get(connection, database_id)
        await audit.note(connection, by, action, record.organization_id, database_id, **details)
        return record


async def _lock_organization(connection: DirectoryConnection, organization_id: str) -> None:
    # This lock mode does not block rows that reference the organization, such as audit entries of a transaction that
    # has locked a cell's row.
    await connection.execute("SELECT FROM organizations WHERE id = %s FOR NO KEY UPDATE", (organization_id,))


async def _find_where(directory: Directory, condition: str, arguments: tuple[str, ...]) -> DatabaseRecord | None:
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} WHERE {condition}", arguments)
        row = await cursor.fetchone()
    return _record(row) if row else None


async def _get(connection: DirectoryConnection, database_id: str) -> DatabaseRecord:
    row = await (await connection.execute(f"{_SELECT} WHERE d.id = %s", (database_id,))).fetchone()
    assert row is not None
    return _record(row)


async def _count(connection: DirectoryConnection, organization_id: str) -> int:
    counted = f"SELECT count(*) AS n FROM databases d WHERE organization_id = %s AND state <> 'deleted' AND {_NO_COPY}"
    row = await (await connection.execute(counted, (organization_id,))).fetchone()
    return int(row["n"]) if row else 0


async def _insert_rows(connection: DirectoryConnection, new: NewDatabase, claim_s: float, secret: str) -> None:
    database = """
        INSERT INTO databases
            (id, organization_id, name, state, is_default, engine_name, cell_id, record_secret, work_after, branch_of,
             expires_at, plain)
        SELECT %(id)s, %(organization_id)s, %(name)s, 'creating', %(branch_of)s::text IS NULL AND
               NOT EXISTS (SELECT FROM databases WHERE organization_id = %(organization_id)s AND is_default),
               %(engine_name)s, cells.id, %(secret)s, now() + %(claim_s)s * interval '1 s', %(branch_of)s,
               %(expires_at)s, %(branch_of)s::text IS NULL
        FROM cells WHERE cells.id = %(cell_id)s AND cells.state <> 'removed' FOR KEY SHARE
    """
    arguments = {
        "id": new.id, "organization_id": new.organization_id, "name": new.name, "engine_name": new.engine_name,
        "cell_id": new.cell_id, "claim_s": claim_s, "secret": secret, "branch_of": new.branch_of,
        "expires_at": new.expires_at,
    }  # fmt: skip
    try:
        inserted = await connection.execute(database, arguments)
    except errors.UniqueViolation as error:
        raise _taken(new.name) from error
    if inserted.rowcount == 0:
        raise ConflictError("wrong_state", "The cell was removed meanwhile.", hint="Try again.")
    roles = "INSERT INTO roles (database_id, kind, engine_name) VALUES (%s, 'owner', %s), (%s, 'reader', %s)"
    await connection.execute(roles, (new.id, new.owner_role, new.id, new.reader_role))


def _taken(name: str) -> ConflictError:
    return ConflictError(
        "name_taken",
        f"A database named {name!r} already exists.",
        hint="A database that is being deleted keeps its name until it is dropped. You can rename it.",
    )


def _names(states: States) -> list[str]:
    return [str(state) for state in states]


def _record(row: dict[str, Any] | None) -> DatabaseRecord:
    assert row is not None
    restores_to = None if row["restores_to"] is None else DatabaseState(row["restores_to"])
    states = {"state": DatabaseState(row["state"]), "cell_state": CellState(row["cell_state"])}
    return DatabaseRecord(**{**row, **states, "restores_to": restores_to})
