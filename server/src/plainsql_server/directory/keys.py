"""API keys in the directory: their digests, scopes and databases.

Reads and writes the table `api_keys`. The secret itself is never stored, only its SHA-256, and its first characters and
last four, by which people recognize their keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import errors

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import ConflictError, LimitError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory import audit, databases, organizations
from plainsql_server.directory.connection import Directory, DirectoryConnection

_SELECT = """
    SELECT k.id, k.organization_id, k.name, o.tier, k.scopes, k.database_id, d.name AS database_name,
           k.shown_prefix, k.last_four, k.created_at, k.last_used_at, k.expires_at, k.revoked_at, k.replaces,
           o.suspended_at IS NOT NULL AS is_suspended
    FROM api_keys k
    JOIN organizations o ON o.id = k.organization_id
    LEFT JOIN databases d ON d.id = k.database_id
"""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored API key, with its organization's tier."""

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
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    replaces: str | None
    is_suspended: bool
    """Whether the operator has suspended its organization."""

    @property
    def ends_at(self) -> datetime | None:
        """When it expires; None for never."""
        return self.expires_at

    def is_active(self, at: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > at)

    def principal(self) -> Principal:
        """The principal it authenticates. That of a suspended organization may do nothing."""
        scopes = frozenset[Scope]() if self.is_suspended else self.scopes
        return Principal(self.organization_id, self.id, self.tier, scopes, self.database_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeyRecord:
    """A key to store."""

    id: str
    organization_id: str
    name: str
    digest: bytes
    shown_prefix: str
    last_four: str
    scopes: frozenset[Scope]
    database_id: str | None
    expires_at: datetime | None
    replaces: str | None = None


async def insert(directory: Directory, new: NewKeyRecord, at_most: int, by: Actor) -> KeyRecord:
    """Stores a key. Raises LimitError if the organization already has `at_most` active keys.

    Raises AccessError if the database that it is bound to was deleted meanwhile.
    """
    async with directory.connection() as connection, connection.transaction():
        await organizations.lock(connection, new.organization_id)
        if await _count_live(connection, new.organization_id) >= at_most:
            raise _too_many(at_most)
        if new.database_id is not None:
            await databases.hold(connection, new.database_id)
        await _insert_row(connection, new)
        await audit.note(connection, by, "key.create", new.organization_id, new.id, **_audit_details(new))
        return await _get(connection, new.id)


async def replace(
    directory: Directory, new: NewKeyRecord, old_ends_at: datetime, at: datetime, *, at_most: int, by: Actor
) -> tuple[KeyRecord, KeyRecord] | None:
    """Stores a key that replaces another. Returns both; the old one now expires at `old_ends_at` or earlier.

    Returns None if the old key is not active. Raises ConflictError if it was already replaced, AccessError if the
    database that it is bound to was deleted, LimitError if the organization would have more than `at_most` active keys.
    """
    end = """
        UPDATE api_keys SET expires_at = least(expires_at, %(ends_at)s)
        WHERE id = %(id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(at)s)
    """
    assert new.replaces is not None
    async with directory.connection() as connection, connection.transaction():
        await organizations.lock(connection, new.organization_id)
        if new.database_id is not None:
            await databases.hold(connection, new.database_id)
        ended = await connection.execute(end, {"id": new.replaces, "ends_at": old_ends_at, "at": at})
        if ended.rowcount == 0:
            return None
        try:
            await _insert_row(connection, new)
        except errors.UniqueViolation as error:
            raise ConflictError("key_replaced", "This key was already rotated.") from error
        if await _count_live(connection, new.organization_id) > at_most:
            raise _too_many(at_most)
        await audit.note(connection, by, "key.rotate", new.organization_id, new.replaces, replaced_by=new.id)
        return await _get(connection, new.id), await _get(connection, new.replaces)


async def find_by_digest(directory: Directory, digest: bytes) -> KeyRecord | None:
    """The key with that digest, or None. Also returns expired and revoked keys; the caller must check."""
    async with directory.connection() as connection:
        cursor = await connection.execute(f"{_SELECT} WHERE k.digest = %s", (digest,))
        row = await cursor.fetchone()
    return _record(row) if row else None


async def find(directory: Directory, key_id: str, organization_id: str) -> KeyRecord | None:
    """An organization's key, or None."""
    async with directory.connection() as connection:
        cursor = await connection.execute(
            f"{_SELECT} WHERE k.id = %s AND k.organization_id = %s", (key_id, organization_id)
        )
        row = await cursor.fetchone()
    return _record(row) if row else None


async def list_(
    directory: Directory, organization_id: str, limit: int | None = None, after: str | None = None
) -> list[KeyRecord]:
    """An organization's keys, oldest first, including revoked ones, starting after the key `after`."""
    statement = f"""
        {_SELECT} WHERE k.organization_id = %s AND (%s::text IS NULL OR k.id > %s) ORDER BY k.id LIMIT %s
    """
    async with directory.connection() as connection:
        cursor = await connection.execute(statement, (organization_id, after, after, limit))
        return [_record(row) for row in await cursor.fetchall()]


async def revoke(directory: Directory, key_id: str, organization_id: str | None, by: Actor) -> KeyRecord | None:
    """Revokes a key; a repeated call changes nothing. Returns None if there is no such key.

    Operators pass no organization. Requests pass the caller's, so they cannot see the keys of others.
    """
    statement = """
        UPDATE api_keys SET revoked_at = now()
        WHERE id = %(id)s AND revoked_at IS NULL
          AND (%(organization_id)s::text IS NULL OR organization_id = %(organization_id)s)
        RETURNING organization_id
    """
    async with directory.connection() as connection, connection.transaction():
        arguments = {"id": key_id, "organization_id": organization_id}
        changed = await (await connection.execute(statement, arguments)).fetchone()
        if changed is not None:
            await audit.note(connection, by, "key.revoke", changed["organization_id"], key_id)
        row = await (await connection.execute(f"{_SELECT} WHERE k.id = %s", (key_id,))).fetchone()
    if row is None or organization_id not in (None, row["organization_id"]):
        return None
    return _record(row)


async def note_used(connection: DirectoryConnection, used: Mapping[str, datetime]) -> None:
    """Records when these keys were last used."""
    # In the order of the ids, in which every plane locks them.
    ids = sorted(used)
    statement = """
        SELECT note_keys_used(ARRAY[used.id], used.at) FROM unnest(%s::text[], %s::timestamptz[]) AS used (id, at)
    """
    await connection.execute(statement, (ids, [used[key_id] for key_id in ids]))


def _too_many(at_most: int) -> LimitError:
    return LimitError(
        "key_limit",
        f"Key limit reached: an organization can have {at_most} active keys.",
        hint="Revoke unused keys. GET /v1/keys shows when each key was last used.",
    )


async def _count_live(connection: DirectoryConnection, organization_id: str) -> int:
    statement = """
        SELECT count(*) AS n FROM api_keys
        WHERE organization_id = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
    """
    row = await (await connection.execute(statement, (organization_id,))).fetchone()
    assert row is not None
    return int(row["n"])


async def _insert_row(connection: DirectoryConnection, new: NewKeyRecord) -> None:
    statement = """
        INSERT INTO api_keys
            (id, organization_id, name, digest, shown_prefix, last_four, scopes, database_id, expires_at, replaces)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    """
    scopes = sorted(str(scope) for scope in new.scopes)
    arguments = (
        new.id, new.organization_id, new.name, new.digest, new.shown_prefix, new.last_four, scopes,
        new.database_id, new.expires_at, new.replaces,
    )  # fmt: skip
    await connection.execute(statement, arguments)


def _audit_details(new: NewKeyRecord) -> dict[str, Any]:
    return {
        "name": new.name,
        "scopes": sorted(str(scope) for scope in new.scopes),
        "database_id": new.database_id,
        "expires_at": None if new.expires_at is None else new.expires_at.isoformat(),
    }


async def _get(connection: DirectoryConnection, key_id: str) -> KeyRecord:
    row = await (await connection.execute(f"{_SELECT} WHERE k.id = %s", (key_id,))).fetchone()
    assert row is not None
    return _record(row)


def _record(row: dict[str, Any]) -> KeyRecord:
    return KeyRecord(**{**row, "scopes": frozenset(Scope(scope) for scope in row["scopes"])})
