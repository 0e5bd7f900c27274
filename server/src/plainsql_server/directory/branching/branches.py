"""Branches in the directory: databases that are copied from another one of their organization.

The copy itself is made on the cell (`engine/admin/branching.py`). While it is made, requests to the parent are held as
in the switch of a move (`directory/moves.py`): the hold ends by itself if the process that renews it dies.
"""

from plainsql_server.core.actor import Actor
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord

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


async def put_off(directory: Directory, branch_id: str, claim_s: float) -> None:
    """Renews the claim on a branch that is being copied, so no other process takes up its creation."""
    statement = "UPDATE databases SET work_after = now() + %s * interval '1 s' WHERE id = %s AND state = 'creating'"
    async with directory.connection() as connection:
        await connection.execute(statement, (claim_s, branch_id))


async def inherit_code(directory: Directory, branch_id: str, parent: DatabaseRecord) -> None:
    """Records whether the copy may contain code: if the parent may. Call it before the parent may be exchanged.

    A database is marked before code is stored in it, so what was copied with code is marked by now.
    """
    statement = """
        UPDATE databases SET plain = p.plain FROM databases p
        WHERE databases.id = %s AND p.id = %s AND p.engine_name = %s AND databases.state IN ('creating', 'failed')
    """
    async with directory.connection() as connection:
        await connection.execute(statement, (branch_id, parent.id, parent.engine_name))


async def expire(directory: Directory, by: Actor) -> list[str]:
    """Starts to delete the branches whose time is up. They can't be restored. Returns their ids."""
    # As databases that were never ready, they are dropped at once and free their names.
    statement = """
        UPDATE databases SET state = 'deleting', restores_to = NULL, restorable_until = NULL, work_after = now()
        WHERE expires_at <= now() AND state IN ('ready', 'suspended', 'failed')
        RETURNING id, organization_id
    """
    async with directory.connection() as connection, connection.transaction():
        rows = await (await connection.execute(statement)).fetchall()
        for row in rows:
            await audit.note(connection, by, "database.expire", row["organization_id"], row["id"])
    return [row["id"] for row in rows]
