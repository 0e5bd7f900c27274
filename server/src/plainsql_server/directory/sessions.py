"""Sessions in the directory: tokens that replace a key for a limited time, with its rights or fewer.

Reads and writes the table `sessions`. Only the SHA-256 of a token is stored, never the token.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import LimitError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory import audit, databases, organizations
from plainsql_server.directory.connection import Directory, DirectoryConnection

# How long ended sessions are kept, only so that operators can look them up.
KEPT = timedelta(days=7)
EXPIRED = "This session has expired."

_SELECT = """
    SELECT s.id, s.organization_id, s.key_id, o.tier, s.scopes, s.database_id, d.name AS database_name,
           s.created_at, s.expires_at, s.ended_at,
           k.scopes AS key_scopes, k.expires_at AS key_expires_at, k.revoked_at AS key_revoked_at,
           o.suspended_at IS NOT NULL AS is_suspended
    FROM sessions s
    JOIN api_keys k ON k.id = s.key_id
    JOIN organizations o ON o.id = s.organization_id
    LEFT JOIN databases d ON d.id = s.database_id
"""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored session, with what its key still allows."""

    id: str
    organization_id: str
    key_id: str
    tier: str
    scopes: frozenset[Scope]
    database_id: str | None
    database_name: str | None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    key_scopes: frozenset[Scope]
    key_expires_at: datetime | None
    key_revoked_at: datetime | None
    is_suspended: bool
    """Whether the operator has suspended its organization."""

    @property
    def ends_at(self) -> datetime:
        """When it expires: at the latest with its key."""
        return self.expires_at if self.key_expires_at is None else min(self.expires_at, self.key_expires_at)

    def is_shorter_than(self, life: timedelta) -> bool:
        """Whether it was created for a shorter time than this, and not because its key ends."""
        ends_with_key = self.key_expires_at is not None and self.key_expires_at <= self.expires_at
        return self.expires_at - self.created_at < life and not ends_with_key

    def is_active(self, at: datetime) -> bool:
        return self.ended_at is None and self.key_revoked_at is None and self.ends_at > at

    def how_it_ended(self) -> str:
        """How a session that is no longer active has ended, for its holder."""
        if self.ended_at is not None:
            return "This session has ended."
        if self.key_revoked_at is not None or self.ends_at < self.expires_at:
            return "This session has ended with its API key, which was revoked or has expired."
        return EXPIRED

    def principal(self) -> Principal:
        """The principal it authenticates, limited to the current scopes of its key; to none while suspended."""
        key = Principal(self.organization_id, self.key_id, self.tier, self.key_scopes)
        scopes = frozenset(scope for scope in self.scopes if key.may(scope) and not self.is_suspended)
        return key._replace(scopes=scopes, database=self.database_name, session_id=self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSessionRecord:
    """A session to store."""

    id: str
    organization_id: str
    key_id: str
    digest: bytes
    scopes: frozenset[Scope]
    database_id: str | None
    created_at: datetime
    expires_at: datetime


async def insert(directory: Directory, new: NewSessionRecord, at_most: int, by: Actor) -> SessionRecord | None:
    """Stores a session. Returns None if its key was revoked or expired meanwhile, or is bound to another database.

    Raises AccessError if the database that it is bound to was deleted meanwhile, LimitError if the organization already
    has `at_most` sessions.
    """
    statement = """
        INSERT INTO sessions (id, organization_id, key_id, digest, scopes, database_id, created_at, expires_at)
        SELECT %(id)s, k.organization_id, k.id, %(digest)s, %(scopes)s, coalesce(%(database_id)s, k.database_id),
               %(created_at)s, least(%(expires_at)s, k.expires_at)
        FROM api_keys k
        WHERE k.id = %(key_id)s AND k.organization_id = %(organization_id)s AND k.revoked_at IS NULL
          AND (k.expires_at IS NULL OR k.expires_at > %(created_at)s)
          AND (k.database_id IS NULL OR k.database_id = coalesce(%(database_id)s, k.database_id))
        FOR SHARE
    """
    arguments = {
        "id": new.id, "organization_id": new.organization_id, "key_id": new.key_id, "digest": new.digest,
        "scopes": sorted(str(scope) for scope in new.scopes), "database_id": new.database_id,
        "created_at": new.created_at, "expires_at": new.expires_at,
    }  # fmt: skip
    async with directory.connection() as connection, connection.transaction():
        await organizations.lock(connection, new.organization_id)
        if await _count_live(connection, new.organization_id, new.created_at) >= at_most:
            raise _too_many(at_most)
        if new.database_id is not None:
            await databases.hold(connection, new.database_id)
        stored = await connection.execute(statement, arguments)
        if stored.rowcount == 0:
            return None
        await audit.note(connection, by, "session.create", new.organization_id, new.id, key_id=new.key_id)
        row = await (await connection.execute(f"{_SELECT} WHERE s.id = %s", (new.id,))).fetchone()
    assert row is not None
    return _record(row)


async def find_by_digest(directory: Directory, digest: bytes) -> SessionRecord | None:
    """The session with that digest, or None. Also returns ended sessions; the caller must check."""
    async with directory.connection() as connection:
        row = await (await connection.execute(f"{_SELECT} WHERE s.digest = %s", (digest,))).fetchone()
    return _record(row) if row else None


async def find(directory: Directory, session_id: str, organization_id: str) -> SessionRecord | None:
    """An organization's session, or None."""
    async with directory.connection() as connection:
        cursor = await connection.execute(
            f"{_SELECT} WHERE s.id = %s AND s.organization_id = %s", (session_id, organization_id)
        )
        row = await cursor.fetchone()
    return _record(row) if row else None


async def extend(
    directory: Directory, session_id: str, by_time: timedelta, *, at: datetime, at_most: datetime, by: Actor
) -> SessionRecord | None:
    """Extends a session by `by_time`, but not beyond `at_most` or the expiry of its key.

    It never shortens a session. If the key was given an expiry meanwhile, see `ends_at` of the returned record. Returns
    None if the session is not active at the time `at`.
    """
    statement = """
        UPDATE sessions s
        SET expires_at = greatest(s.expires_at, least(s.expires_at + %(by)s, %(at_most)s, k.expires_at))
        FROM api_keys k
        WHERE s.id = %(id)s AND k.id = s.key_id AND s.ended_at IS NULL AND s.expires_at > %(at)s
          AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > %(at)s)
        RETURNING s.organization_id
    """
    arguments = {"id": session_id, "by": by_time, "at": at, "at_most": at_most}
    async with directory.connection() as connection, connection.transaction():
        changed = await (await connection.execute(statement, arguments)).fetchone()
        if changed is None:
            return None
        await audit.note(connection, by, "session.refresh", changed["organization_id"], session_id)
        row = await (await connection.execute(f"{_SELECT} WHERE s.id = %s", (session_id,))).fetchone()
    return _record(row) if row else None


async def end(directory: Directory, session_id: str, at: datetime, by: Actor) -> bool:
    """Ends a session. Returns whether it existed and had not ended yet."""
    statement = "UPDATE sessions SET ended_at = %s WHERE id = %s AND ended_at IS NULL RETURNING organization_id"
    async with directory.connection() as connection, connection.transaction():
        row = await (await connection.execute(statement, (at, session_id))).fetchone()
        if row is None:
            return False
        await audit.note(connection, by, "session.end", row["organization_id"], session_id)
    return True


async def delete_expired_before(directory: Directory, before: datetime) -> None:
    """Deletes sessions that expired before then. The audit log keeps their entries."""
    async with directory.connection() as connection:
        await connection.execute("DELETE FROM sessions WHERE expires_at < %s", (before,))


async def _count_live(connection: DirectoryConnection, organization_id: str, at: datetime) -> int:
    # Counts by key, because that column has an index.
    statement = """
        SELECT count(*) AS n FROM api_keys k JOIN sessions s ON s.key_id = k.id
        WHERE k.organization_id = %s AND k.revoked_at IS NULL AND s.ended_at IS NULL AND s.expires_at > %s
    """
    row = await (await connection.execute(statement, (organization_id, at))).fetchone()
    assert row is not None
    return int(row["n"])


def _too_many(at_most: int) -> LimitError:
    return LimitError(
        "session_limit",
        f"Session limit reached: an organization can have {at_most} sessions at once.",
        hint="End unused sessions with DELETE /v1/session. A session expires after 24 hours unless it is refreshed.",
    )


def _record(row: dict[str, Any]) -> SessionRecord:
    scopes = {name: frozenset(Scope(scope) for scope in row[name]) for name in ("scopes", "key_scopes")}
    return SessionRecord(**{**row, **scopes})
