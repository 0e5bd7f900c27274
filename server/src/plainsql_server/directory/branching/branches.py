"""Branches in the directory: databases that are copied from another one of their organization.

The copy itself is made on the cell (`engine/admin/branching.py`). While it is made, requests to the parent are held as
in the switch of a move (`directory/moves.py`): the hold ends by itself if the process that renews it dies.
"""

from plainsql_server.core.actor import Actor
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord

_IS_DRAFT = "state = 'deleting' AND restores_to IS NULL"
_IS_CLAIMED = f"{_IS_DRAFT} AND held_until > now()"
_UNFINISHED_MOVE = "SELECT FROM moves WHERE database_id = d.id AND state IN ('copying', 'stopping', 'undoing')"


async def hold(directory: Directory, parent: DatabaseRecord, for_s: float) -> bool:
    """Makes requests to the parent wait, for at most `for_s`. Also renews that.

    Returns False, and changes nothing, if the parent is not ready, was exchanged, or is being moved.
    """
    statement = f"""
        UPDATE databases d SET held_until = now() + %s * interval '1 s'
        WHERE id = %s AND engine_name = %s AND state = 'ready' AND NOT EXISTS ({_UNFINISHED_MOVE})
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, (for_s, parent.id, parent.engine_name))).rowcount == 1


async def release(directory: Directory, parent: DatabaseRecord) -> None:
    """Lets requests to the parent continue. A move that has begun since decides for itself."""
    statement = f"UPDATE databases d SET held_until = NULL WHERE id = %s AND NOT EXISTS ({_UNFINISHED_MOVE})"
    async with directory.connection() as connection:
        await connection.execute(statement, (parent.id,))


async def put_off(directory: Directory, branch_id: str, claim_s: float) -> bool:
    """Renews the claim on a branch that is being made. Returns False if it is no longer being made.

    It is a draft (`directory/drafts.py`): when the claim ends, any process drops what there is of it, so it can't be
    renewed then. `held_until` distinguishes it from a branch that is being deleted.
    """
    statement = f"""
        UPDATE databases SET (work_after, held_until) = (SELECT until, until FROM (
            SELECT now() + %s * interval '1 s' AS until) AS claim)
        WHERE id = %s AND {_IS_CLAIMED}
    """
    async with directory.connection() as connection:
        return (await connection.execute(statement, (claim_s, branch_id))).rowcount == 1


async def give_up(directory: Directory, branch_id: str) -> bool:
    """Makes a branch that could not be made due to be dropped. Returns False if it is no draft any more."""
    statement = f"UPDATE databases SET work_after = now(), held_until = NULL WHERE id = %s AND {_IS_DRAFT}"
    async with directory.connection() as connection:
        return (await connection.execute(statement, (branch_id,))).rowcount == 1


async def withdraw(directory: Directory, branch_id: str) -> bool:
    """The same for a branch that was no work for its cell: it does not count for the daily limit (`daily_limit.py`).

    Returns False, and changes nothing, if a restore is to fill it: the answer to storing that may have been lost.
    """
    statement = f"""
        UPDATE databases SET work_after = now(), held_until = NULL, branch_of = NULL WHERE id = %s AND {_IS_DRAFT}
            AND NOT EXISTS (
                SELECT FROM restores r WHERE r.target_id = databases.id AND r.state IN ('waiting', 'running'))
    """
    async with directory.connection() as connection, connection.transaction():
        # What stores a restore has this lock, too. The next statement sees whether it was stored.
        await connection.execute("SELECT FROM databases WHERE id = %s FOR NO KEY UPDATE", (branch_id,))
        return (await connection.execute(statement, (branch_id,))).rowcount == 1


async def complete(directory: Directory, branch: DatabaseRecord, parent: DatabaseRecord, by: Actor) -> bool:
    """Makes the draft a ready database, which may contain code if its parent may.

    Returns False, and changes nothing, if it is no draft or its claim has ended: another process may be dropping it.

    Call it before the parent may be exchanged. A database is marked before code is stored in it, so what was copied
    with code is marked by now.
    """
    statement = f"""
        UPDATE databases SET state = 'ready', work_after = NULL, held_until = NULL, content_since = now(),
            plain = coalesce((SELECT p.plain FROM databases p WHERE p.id = %s AND p.engine_name = %s), false)
        WHERE id = %s AND {_IS_CLAIMED}
    """
    async with directory.connection() as connection, connection.transaction():
        changed = await connection.execute(statement, (parent.id, parent.engine_name, branch.id))
        if changed.rowcount == 0:
            return False
        await audit.note(connection, by, "database.finish", branch.organization_id, branch.id)
    return True


async def names_on(directory: Directory, organization_id: str, cell_id: str) -> list[str]:
    """What the organization's branches on a cell are called there, with those that are being deleted."""
    statement = """
        SELECT engine_name FROM databases
        WHERE organization_id = %s AND cell_id = %s AND branch_of IS NOT NULL AND state <> 'deleted'
    """
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (organization_id, cell_id))).fetchall()
    return [row["engine_name"] for row in rows]


async def expire(directory: Directory, by: Actor) -> list[str]:
    """Starts to delete the branches whose time is up. They can't be restored. Returns their ids.

    A default database is never deleted so.
    """
    # As databases that were never ready, they are dropped at once and free their names.
    statement = """
        UPDATE databases SET state = 'deleting', restores_to = NULL, restorable_until = NULL, work_after = now()
        WHERE expires_at <= now() AND state IN ('ready', 'suspended', 'failed') AND NOT is_default
        RETURNING id, organization_id
    """
    async with directory.connection() as connection, connection.transaction():
        rows = await (await connection.execute(statement)).fetchall()
        for row in rows:
            await audit.note(connection, by, "database.expire", row["organization_id"], row["id"])
    return [row["id"] for row in rows]
