"""Purges an organization from the directory: all its rows in all tables, and what its audit log says beside ids.

Call `close` first, then drop its databases, then `purge`. What is left is the audit log, with times, actors, actions
and ids, so that it can still be shown who deleted what.
"""

from plainsql_server.core.actor import Actor
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory

# In the order of their references.
_ROWS = [
    "DELETE FROM usage WHERE organization_id = %s",
    "DELETE FROM permits WHERE organization_id = %s",
    "DELETE FROM sessions WHERE organization_id = %s",
    "DELETE FROM api_keys WHERE organization_id = %s",
    "DELETE FROM spanning_transactions WHERE organization_id = %s",
    "DELETE FROM moves USING databases d WHERE moves.database_id = d.id AND d.organization_id = %s",
    "DELETE FROM restores WHERE organization_id = %s",
    "DELETE FROM roles USING databases d WHERE roles.database_id = d.id AND d.organization_id = %s",
    "DELETE FROM databases WHERE organization_id = %s",
    # A cell of its own is empty now. Full, it accepts no one's databases until the operator decides so.
    "UPDATE cells SET organization_id = NULL, state = CASE state WHEN 'active' THEN 'full' ELSE state END"
    " WHERE organization_id = %s",
    "DELETE FROM organizations WHERE id = %s",
    # It refuses an organization that exists.
    "SELECT clear_audit(%s)",
]

_TIMEOUT_MS = 600_000


async def close(directory: Directory, organization_id: str, by: Actor) -> None:
    """Suspends an organization, revokes its keys and ends its sessions."""
    changes = [
        "UPDATE organizations SET suspended_at = coalesce(suspended_at, now()) WHERE id = %s",
        "UPDATE api_keys SET revoked_at = now() WHERE organization_id = %s AND revoked_at IS NULL",
        "UPDATE sessions SET ended_at = now() WHERE organization_id = %s AND ended_at IS NULL",
    ]
    async with directory.connection() as connection, connection.transaction():
        for change in changes:
            await connection.execute(change, (organization_id,))
        await audit.note(connection, by, "organization.close", organization_id, organization_id)


async def database_ids(directory: Directory, organization_id: str) -> list[str]:
    """The databases that are not deleted, with copies and drafts."""
    statement = "SELECT id FROM databases WHERE organization_id = %s AND state <> 'deleted' ORDER BY id"
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (organization_id,))).fetchall()
    return [str(row["id"]) for row in rows]


async def own_cells(directory: Directory, organization_id: str) -> list[str]:
    """The names of the organization's own cells."""
    statement = "SELECT name FROM cells WHERE organization_id = %s AND state <> 'removed' ORDER BY name"
    async with directory.connection() as connection:
        rows = await (await connection.execute(statement, (organization_id,))).fetchall()
    return [str(row["name"]) for row in rows]


async def purge(directory: Directory, organization_id: str, by: Actor) -> int | None:
    """Deletes all rows. Returns how many audit entries are left; None, and deletes nothing, if a database is left."""
    left = "SELECT FROM databases WHERE organization_id = %s AND state <> 'deleted' LIMIT 1"
    entries = "SELECT count(*) AS n FROM audit WHERE organization_id = %s"
    async with directory.connection() as connection, connection.transaction():
        # A large organization has many rows. The statements of planes have a shorter time.
        await connection.execute(f"SET LOCAL statement_timeout = {_TIMEOUT_MS}")
        # A new database waits for this lock, and then finds no organization.
        await connection.execute("SELECT FROM organizations WHERE id = %s FOR UPDATE", (organization_id,))
        if (await connection.execute(left, (organization_id,))).rowcount:
            return None
        for statement in _ROWS:
            await connection.execute(statement, (organization_id,))
        await audit.note(connection, by, "organization.purge", organization_id, organization_id)
        row = await (await connection.execute(entries, (organization_id,))).fetchone()
    assert row is not None
    return int(row["n"])
