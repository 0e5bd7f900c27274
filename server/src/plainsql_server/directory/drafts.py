"""Drafts in the directory: databases that are being filled from a backup and cannot be used yet.

A draft is in state deleting, cannot be restored, and is due to be dropped soon. The process that fills it keeps
postponing that. So a draft whose restore died is dropped automatically (`control_plane/finishing.py`), and a draft is
never mistaken for a complete database. One transaction makes a draft a database: a new one, or the new content of
another.
"""

from datetime import datetime
from typing import Any

from plainsql_server.core.actor import Actor
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory, DirectoryConnection
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState, find_by_id
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.restoring.restores import Finished

_IS_DRAFT = "state = 'deleting' AND restores_to IS NULL"
_PLACE = "engine_name, cell_id, record_secret, plain, content_since"


async def put_off(directory: Directory, draft_id: str, claim_s: float) -> bool:
    """Postpones the drop of a draft by `claim_s`. Returns False if it is no longer a draft."""
    statement = f"UPDATE databases SET work_after = now() + %s * interval '1 s' WHERE id = %s AND {_IS_DRAFT}"
    async with directory.connection() as connection:
        return (await connection.execute(statement, (claim_s, draft_id))).rowcount == 1


async def adopt(directory: Directory, draft: DatabaseRecord, without_code: bool, by: Actor) -> DatabaseRecord | None:
    """Makes the draft a ready database, and the default if there is none. Returns None if it is no longer a draft."""
    statement = f"""
        UPDATE databases SET state = 'ready', work_after = NULL, plain = %(plain)s, content_since = now(),
            is_default = NOT EXISTS (
                SELECT FROM databases WHERE organization_id = %(organization)s AND is_default)
        WHERE id = %(id)s AND {_IS_DRAFT}
    """
    arguments = {"id": draft.id, "organization": draft.organization_id, "plain": without_code}
    async with directory.connection() as connection, connection.transaction():
        # Other transactions that choose a default database wait for this lock.
        await connection.execute("SELECT FROM organizations WHERE id = %s FOR NO KEY UPDATE", (draft.organization_id,))
        if (await connection.execute(statement, arguments)).rowcount == 0:
            return None
        await audit.note(connection, by, "database.restore_backup", draft.organization_id, draft.id)
    return await find_by_id(directory, draft.id)


async def replace(
    directory: Directory,
    draft: DatabaseRecord,
    target: DatabaseRecord,
    *,
    without_code: bool,
    restore_s: float,
    by: Actor,
    lost_since: datetime | None = None,
    finished: Finished | None = None,
) -> DatabaseRecord | None:
    """Gives the database `target` the draft's content. It keeps its id, name and keys, and stays the default if it was.

    The draft gets the old content; it is being deleted and can be restored for `restore_s`. Returns None, and changes
    nothing, if one of the two has changed, with `lost_since` if the old cell has not been lost ever since, and with
    `finished` if another worker has claimed that restore.
    """
    async with directory.connection() as connection, connection.transaction():
        if finished is not None and not await restores.hold(connection, finished.restore):
            return None
        if not await exchange(connection, draft, target, without_code=without_code, lost_since=lost_since):
            return None
        await connection.execute(
            "UPDATE databases SET restores_to = %s, restorable_until = now() + %s * interval '1 s',"
            " work_after = now() + %s * interval '1 s' WHERE id = %s",
            (target.state, restore_s, restore_s, draft.id),
        )
        details = {"replaced_id": draft.id, **({} if lost_since is None else {"lost_cell_id": target.cell_id})}
        await audit.note(connection, by, "database.restore_backup", target.organization_id, target.id, **details)
        if finished is not None:
            await restores.finish(connection, finished)
    return await find_by_id(directory, target.id)


async def fill_branch(
    directory: Directory, draft: DatabaseRecord, branch: DatabaseRecord, finished: Finished, by: Actor
) -> DatabaseRecord | None:
    """Gives the draft's content to a branch that is reserved for it, and makes that ready.

    Returns None, and changes nothing, if the branch was deleted, if one of the two has changed, or if another worker
    has claimed the restore.
    """
    if branch.state is not DatabaseState.DELETING:
        return None
    ready = "UPDATE databases SET state = 'ready', work_after = NULL, held_until = NULL WHERE id = %s"
    async with directory.connection() as connection, connection.transaction():
        is_mine = await restores.hold(connection, finished.restore)
        if not is_mine or not await exchange(connection, draft, branch, without_code=False):
            return None
        await connection.execute(ready, (branch.id,))
        # It has the place that was reserved now, where there is nothing.
        await connection.execute("UPDATE databases SET work_after = now() WHERE id = %s", (draft.id,))
        await audit.note(connection, by, "database.finish", branch.organization_id, branch.id)
        await restores.finish(connection, finished)
    return await find_by_id(directory, branch.id)


async def exchange(
    connection: DirectoryConnection, draft: DatabaseRecord, target: DatabaseRecord, *,
    without_code: bool | None = None, lost_since: datetime | None = None,
) -> bool:  # fmt: skip
    """Swaps the locations of draft and target: cell, engine name, roles and record secret.

    `without_code` overrides whether the new content is without code. Returns False, and changes nothing, if one of the
    two has changed, or if the target's cell has not been lost since `lost_since`.
    """
    rows = await _both(connection, draft, target)
    if rows is None:
        return False
    old, new = rows
    await _lock_cells(connection, [old["cell_id"], new["cell_id"]])
    if lost_since is not None and not await _is_lost(connection, old["cell_id"], lost_since):
        return False
    await _move_aside(connection, draft.id)
    is_without_code = old["plain"] if without_code is None else without_code
    await _place(connection, target.id, {**new, "plain": is_without_code, "content_since": None})
    await _place(connection, draft.id, old)
    await _swap_roles(connection, draft, target)
    return True


async def _both(
    connection: DirectoryConnection, draft: DatabaseRecord, target: DatabaseRecord
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The locations of target and draft, with both rows locked; None if one has changed."""
    locked = f"SELECT id, state, restores_to, {_PLACE} FROM databases WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
    found = await connection.execute(locked, ([draft.id, target.id],))
    rows = {row.pop("id"): row for row in await found.fetchall()}
    old, new = rows[target.id], rows[draft.id]
    is_draft = new.pop("state") == DatabaseState.DELETING and new.pop("restores_to") is None
    old.pop("restores_to")
    unchanged = old.pop("state") == target.state and old["engine_name"] == target.engine_name
    return (old, new) if is_draft and unchanged else None


async def _lock_cells(connection: DirectoryConnection, cell_ids: list[str]) -> None:
    # Both rows get new database counts. The fixed order prevents a deadlock with a swap in the opposite direction.
    locked = "SELECT FROM cells WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
    await connection.execute(locked, (cell_ids,))


async def _is_lost(connection: DirectoryConnection, cell_id: str, since: datetime) -> bool:
    # A cell that was back in between may have taken writes. The same time means that it was not.
    lost = "SELECT FROM cells WHERE id = %s AND state IN ('lost', 'removed') AND lost_since = %s"
    return (await connection.execute(lost, (cell_id, since))).rowcount == 1


async def _move_aside(connection: DirectoryConnection, draft_id: str) -> None:
    # Engine names must be unique at every moment, so the draft gets a temporary one.
    await connection.execute(
        "UPDATE databases SET engine_name = 'd_' || encode(uuid_send(gen_random_uuid()), 'hex') WHERE id = %s",
        (draft_id,),
    )


async def _place(connection: DirectoryConnection, database_id: str, place: dict[str, Any]) -> None:
    statement = """
        UPDATE databases SET engine_name = %(engine_name)s, cell_id = %(cell_id)s, record_secret = %(record_secret)s,
            plain = %(plain)s, content_since = coalesce(%(content_since)s, now()) WHERE id = %(id)s
    """
    await connection.execute(statement, {**place, "id": database_id})


async def _swap_roles(connection: DirectoryConnection, one: DatabaseRecord, other: DatabaseRecord) -> None:
    await connection.execute("DELETE FROM roles WHERE database_id = ANY(%s)", ([one.id, other.id],))
    roles = "INSERT INTO roles (database_id, kind, engine_name) VALUES (%s, 'owner', %s), (%s, 'reader', %s)"
    for database_id, content in ((one.id, other), (other.id, one)):
        await connection.execute(roles, (database_id, content.owner_role, database_id, content.reader_role))
