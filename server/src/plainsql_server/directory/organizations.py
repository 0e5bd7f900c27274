"""Organizations in the directory: the owners of databases and keys, to which tiers and rate limits apply.

Reads and writes the table `organizations`. `control_plane/organizations.py` checks names and tiers. A name is a label:
several organizations may have the same one.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plainsql_server.core.actor import Actor
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory, DirectoryConnection

_COLUMNS = "id, name, tier, created_at, suspended_at"
_SELECT = f"SELECT {_COLUMNS} FROM organizations"


@dataclass(frozen=True, slots=True)
class OrganizationRecord:
    """A stored organization."""

    id: str
    name: str
    tier: str
    created_at: datetime
    suspended_at: datetime | None
    """When the operator suspended it; None if it is not suspended."""


async def insert(directory: Directory, organization_id: str, name: str, tier: str, by: Actor) -> OrganizationRecord:
    """Stores an organization."""
    statement = f"INSERT INTO organizations (id, name, tier) VALUES (%s, %s, %s) RETURNING {_COLUMNS}"
    async with directory.connection() as connection, connection.transaction():
        cursor = await connection.execute(statement, (organization_id, name, tier))
        await audit.note(connection, by, "organization.create", organization_id, organization_id, name=name, tier=tier)
        return _record(await cursor.fetchone())


async def rename(directory: Directory, organization_id: str, name: str, by: Actor) -> OrganizationRecord:
    """Renames an organization."""
    statement = f"UPDATE organizations SET name = %s WHERE id = %s RETURNING {_COLUMNS}"
    async with directory.connection() as connection, connection.transaction():
        cursor = await connection.execute(statement, (name, organization_id))
        await audit.note(connection, by, "organization.rename", organization_id, organization_id, name=name)
        return _record(await cursor.fetchone())


async def set_tier(directory: Directory, organization_id: str, tier: str, by: Actor) -> OrganizationRecord:
    """Sets an organization's tier."""
    statement = f"UPDATE organizations SET tier = %s WHERE id = %s RETURNING {_COLUMNS}"
    async with directory.connection() as connection, connection.transaction():
        cursor = await connection.execute(statement, (tier, organization_id))
        await audit.note(connection, by, "organization.set_tier", organization_id, organization_id, tier=tier)
        return _record(await cursor.fetchone())


async def set_suspended(
    directory: Directory, organization_id: str, suspended: bool, by: Actor
) -> OrganizationRecord | None:
    """Suspends or resumes an organization. Returns None if it is so already."""
    statement = f"""
        UPDATE organizations SET suspended_at = CASE WHEN %s THEN now() END
        WHERE id = %s AND (suspended_at IS NULL) = %s RETURNING {_COLUMNS}
    """
    async with directory.connection() as connection, connection.transaction():
        row = await (await connection.execute(statement, (suspended, organization_id, suspended))).fetchone()
        if row is None:
            return None
        action = "organization.suspend" if suspended else "organization.resume"
        await audit.note(connection, by, action, organization_id, organization_id)
        return _record(row)


async def lock(connection: DirectoryConnection, organization_id: str) -> None:
    """Locks an organization until the end of the transaction, so that counts of its keys and so on stay true.

    Take this lock before any other lock of the transaction, to avoid deadlocks.
    """
    await connection.execute("SELECT FROM organizations WHERE id = %s FOR NO KEY UPDATE", (organization_id,))


async def find(directory: Directory, name_or_id: str) -> list[OrganizationRecord]:
    """The organization with that id, or all with that name, oldest first."""
    # Names cannot look like ids (see the table's CHECK), so nothing matches both.
    statement = f"{_SELECT} WHERE id = %(it)s OR name = %(it)s ORDER BY id"
    async with directory.connection() as connection:
        return [_record(row) for row in await (await connection.execute(statement, {"it": name_or_id})).fetchall()]


async def find_by_id(directory: Directory, organization_id: str) -> OrganizationRecord | None:
    """The organization with that id, or None."""
    async with directory.connection() as connection:
        row = await (await connection.execute(f"{_SELECT} WHERE id = %s", (organization_id,))).fetchone()
    return _record(row) if row else None


async def list_(directory: Directory) -> list[OrganizationRecord]:
    """All organizations, oldest first."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} ORDER BY id")
        return [_record(row) for row in await cursor.fetchall()]


def _record(row: dict[str, Any] | None) -> OrganizationRecord:
    assert row is not None
    return OrganizationRecord(**row)
