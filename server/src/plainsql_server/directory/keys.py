"""API keys in the directory: digests, scopes and what a key is bound to.

Owns the table `api_keys`. Refuses the secret itself: it never comes here, only its SHA-256, the first
characters and the last four, by which people tell their keys apart.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plainsql_server.core.principal import Scope
from plainsql_server.directory.connection import Directory

_SELECT = """
    SELECT k.id, k.organization_id, k.name, o.tier, k.scopes, k.database_id, d.name AS database_name,
           k.shown_prefix, k.last_four, k.created_at, k.expires_at, k.revoked_at
    FROM api_keys k
    JOIN organizations o ON o.id = k.organization_id
    LEFT JOIN databases d ON d.id = k.database_id
"""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as stored, with its organization's tier."""

    id: str
    organization_id: str
    name: str
    tier: str
    scopes: frozenset[Scope]
    database_id: str | None
    database_name: str | None
    shown_prefix: str
    last_four: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """What is decided about a key before it is stored."""

    id: str
    organization_id: str
    name: str
    digest: bytes
    shown_prefix: str
    last_four: str
    scopes: frozenset[Scope]
    database_id: str | None
    expires_at: datetime | None


async def insert(directory: Directory, new: NewKey) -> KeyRecord:
    """The stored key."""
    statement = """
        INSERT INTO api_keys
            (id, organization_id, name, digest, shown_prefix, last_four, scopes, database_id, expires_at)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
    """
    scopes = sorted(str(scope) for scope in new.scopes)
    arguments = (
        new.id, new.organization_id, new.name, new.digest, new.shown_prefix, new.last_four, scopes,
        new.database_id, new.expires_at,
    )  # fmt: skip
    async with directory.connection() as connection, connection.transaction():
        await connection.execute(statement, arguments)
        cursor = await connection.execute(f"{_SELECT} WHERE k.id = %s", (new.id,))
        row = await cursor.fetchone()
    assert row is not None
    return _record(row)


async def find_by_digest(directory: Directory, digest: bytes) -> KeyRecord | None:
    """The key with that digest, or None. An expired or revoked key is returned too: the caller judges."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} WHERE k.digest = %s", (digest,))
        row = await cursor.fetchone()
    return _record(row) if row else None


async def list_(directory: Directory, organization_id: str) -> list[KeyRecord]:
    """An organization's keys, oldest first, revoked ones included."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} WHERE k.organization_id = %s ORDER BY k.id", (organization_id,))
        return [_record(row) for row in await cursor.fetchall()]


async def revoke(directory: Directory, key_id: str, organization_id: str | None = None) -> KeyRecord | None:
    """The key, revoked from now on (a second revocation changes nothing); None if there is no such key.

    An operator passes no organization; a request passes its caller's, so that others' keys do not exist for it.
    """
    statement = """
        UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
        WHERE id = %(id)s AND (%(organization_id)s::text IS NULL OR organization_id = %(organization_id)s)
    """
    async with directory.connection() as connection, connection.transaction():
        changed = await connection.execute(statement, {"id": key_id, "organization_id": organization_id})
        if changed.rowcount == 0:
            return None
        cursor = await connection.execute(f"{_SELECT} WHERE k.id = %s", (key_id,))
        row = await cursor.fetchone()
    return _record(row) if row else None


def _record(row: dict[str, Any]) -> KeyRecord:
    return KeyRecord(**{**row, "scopes": frozenset(Scope(scope) for scope in row["scopes"])})
