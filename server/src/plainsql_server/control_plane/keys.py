"""Rules about API keys: what a key may be given, and that its secret is seen once.

Owns creating, listing and revoking keys. Refuses to keep a secret: `create` returns it and forgets it.
"""

from collections.abc import Iterable
from datetime import datetime

from plainsql_server.control_plane.names import check_title
from plainsql_server.core.clock import now
from plainsql_server.core.credential import Secret, new_key
from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.principal import Scope
from plainsql_server.directory import databases, keys
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord, NewKey


async def create(
    directory: Directory,
    organization_id: str,
    name: str,
    scopes: Iterable[Scope],
    *,
    database: str | None = None,
    expires_at: datetime | None = None,
) -> tuple[KeyRecord, Secret]:
    """A new key and its secret, which exists nowhere else; bound to one database if that is named.

    Raises RequestError for a key that would be of no use, AccessError if there is no such database.
    """
    check_title("a key", name)
    granted = frozenset(scopes)
    _check_use(granted, expires_at)
    database_id = await _database_id(directory, organization_id, database) if database is not None else None
    secret = new_key()
    new = NewKey(
        id=new_id(Kind.KEY),
        organization_id=organization_id,
        name=name,
        digest=secret.digest,
        shown_prefix=secret.shown_prefix,
        last_four=secret.last_four,
        scopes=granted,
        database_id=database_id,
        expires_at=expires_at,
    )
    return await keys.insert(directory, new), secret


async def list_(directory: Directory, organization_id: str) -> list[KeyRecord]:
    """An organization's keys, oldest first, revoked ones included."""
    return await keys.list_(directory, organization_id)


async def revoke(directory: Directory, key_id: str, organization_id: str | None = None) -> KeyRecord:
    """The key, revoked; a second time changes nothing. Raises AccessError if there is no such key.

    An operator names no organization; a request names its caller's, so that others' keys do not exist for it.
    """
    revoked = await keys.revoke(directory, key_id, organization_id)
    if revoked is None:
        raise AccessError("key_not_found", f"There is no key {key_id!r}.")
    return revoked


def _check_use(scopes: frozenset[Scope], expires_at: datetime | None) -> None:
    if not scopes:
        raise RequestError("no_scopes", "A key needs one scope or more.", hint=f"The scopes are {', '.join(Scope)}.")
    if expires_at is None:
        return
    if expires_at.tzinfo is None:
        raise RequestError("invalid_expiry", "The time at which a key expires needs a time zone.")
    if expires_at <= now():
        raise RequestError("invalid_expiry", "The key would have expired already.")


async def _database_id(directory: Directory, organization_id: str, name: str) -> str:
    found = await databases.find(directory, organization_id, name)
    if found is None:
        raise AccessError("database_not_found", f"There is no database {name!r} in this organization.")
    return found.id
