"""The audit log in the directory: who changed what on the control plane, what operators have read, and when.

An entry in the table `audit` is written in the same transaction as the change that it describes, so there is never one
without the other. Entries contain no secrets.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from plainsql_server.core.actor import Actor, id_of
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.directory.connection import Directory, DirectoryConnection

# How long entries are kept: a year and a month, so that a yearly review sees all of it. docs/reference/control.md
# promises this. The directory's function that deletes entries has the same interval.
KEPT = timedelta(days=396)

_COLUMNS = "id, at, organization_id, actor_kind, actor_id, action, target_id, details, request_id"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A stored entry about one change."""

    id: str
    at: datetime
    organization_id: str | None
    actor_kind: str
    actor_id: str | None
    action: str
    target_id: str
    details: dict[str, Any]
    request_id: str | None


async def note(
    connection: DirectoryConnection, by: Actor, action: str, organization_id: str | None, target_id: str, **details: Any
) -> None:
    """Writes an entry. The connection must be in the transaction of the change."""
    statement = f"INSERT INTO audit ({_COLUMNS}) VALUES (%s, now(), %s, %s, %s, %s, %s, %s, %s)"
    values = (
        new_id(Kind.AUDIT), organization_id, by.kind, id_of(by), action, target_id, Jsonb(details), by.request_id,
    )  # fmt: skip
    await connection.execute(statement, values)


async def note_reading(
    directory: Directory, by: Actor, action: str, organization_id: str | None, target_id: str
) -> None:
    """Writes an entry of something that changes nothing. Raises ServiceError if the directory can't be written to."""
    async with directory.connection() as connection, connection.transaction():
        await note(connection, by, action, organization_id, target_id)


async def note_tool_call(
    directory: Directory, by: Actor, tool: str, organization_id: str, database_id: str | None, *, writes: bool
) -> None:
    """Writes the entry of a tool that an agent calls. `writes` says whether the call may write.

    Without a database, because there is none that the agent may use, the entry is about the organization.
    """
    async with directory.connection() as connection, connection.transaction():
        await note(connection, by, f"mcp.{tool}", organization_id, database_id or organization_id, writes=writes)


async def note_reset(directory: Directory, by: Actor, organization_id: str, database_id: str) -> None:
    """Writes the entry of a reset, the only one that the data plane may write."""
    arguments = (organization_id, database_id, by.kind, by.id, by.request_id)
    async with directory.connection() as connection:
        await connection.execute("SELECT note_reset(%s, %s, %s, %s, %s)", arguments)


async def delete_old(directory: Directory, at_most: int) -> None:
    """Deletes up to `at_most` entries that are older than KEPT. The directory keeps the planes from deleting others."""
    async with directory.connection() as connection:
        await connection.execute("SELECT delete_old_audit(%s)", (at_most,))


async def list_(directory: Directory, organization_id: str, limit: int, before: str | None) -> list[AuditRecord]:
    """An organization's entries, newest first, starting before the entry `before`."""
    statement = f"""
        SELECT {_COLUMNS} FROM audit
        WHERE organization_id = %s AND (%s::text IS NULL OR id < %s)
        ORDER BY id DESC LIMIT %s
    """
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, (organization_id, before, before, limit))
        return [AuditRecord(**row) for row in await cursor.fetchall()]
