"""Creates, lists, rotates and revokes API keys.

`create` and `rotate` return a key's secret once; it is not stored.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from plainsql_server.control_plane import databases
from plainsql_server.control_plane.names import check_expiry, check_title
from plainsql_server.control_plane.states import CredentialState
from plainsql_server.core.actor import OPERATOR, Actor
from plainsql_server.core.clock import now
from plainsql_server.core.credential import Secret, new_key
from plainsql_server.core.errors import AccessError, ConflictError, RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.principal import Scope
from plainsql_server.directory import keys
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord, NewKeyRecord

# How many an organization may have that are neither revoked nor expired, in every tier: more than anyone manages by
# hand, and few enough to be counted at each creation.
LIVE_KEYS = 1_000


async def create(
    directory: Directory,
    organization_id: str,
    name: str,
    scopes: Iterable[Scope],
    *,
    database: str | None = None,
    expires_at: datetime | None = None,
    by: Actor = OPERATOR,
) -> tuple[KeyRecord, Secret]:
    """Creates a key, bound to a database if one is named. Returns it with its secret, which is stored nowhere.

    Raises RequestError if the key would be useless, AccessError if there is no such database, LimitError if the
    organization has reached its limit of keys.
    """
    check_title("a key", name)
    granted = frozenset(scopes)
    if not granted:
        raise RequestError("no_scopes", "A key needs at least one scope.", hint=f"The scopes are {', '.join(Scope)}.")
    check_expiry("a key", expires_at)
    bound_to = None if database is None else await databases.get_named(directory, organization_id, database)
    secret = new_key()
    database_id = bound_to.id if bound_to else None
    new = _new(secret, organization_id, name, scopes=granted, database_id=database_id, expires_at=expires_at)
    return await keys.insert(directory, new, LIVE_KEYS, by), secret


async def rotate(
    directory: Directory, organization_id: str, key_id: str, overlap: timedelta, by: Actor
) -> tuple[KeyRecord, KeyRecord, Secret]:
    """Replaces a key. Returns the new key with the same rights, the old key, which is valid until the overlap ends, and
    the new secret.

    Raises AccessError if there is no such key, ConflictError if it is no longer valid or was already rotated.
    """
    old = await get(directory, organization_id, key_id)
    secret, at = new_key(), now()
    new = _new(
        secret, organization_id, old.name,
        scopes=old.scopes, database_id=old.database_id, expires_at=old.expires_at, replaces=key_id,
    )  # fmt: skip
    replaced = await keys.replace(directory, new, at + overlap, at, at_most=LIVE_KEYS, by=by)
    if replaced is None:
        raise ConflictError("key_not_active", "This key is revoked or expired. Create a new key instead.")
    return *replaced, secret


async def get(directory: Directory, organization_id: str, key_id: str) -> KeyRecord:
    """An organization's key. Raises AccessError if there is no key with that id."""
    found = await keys.find(directory, key_id, organization_id)
    if found is None:
        raise _not_found(key_id)
    return found


async def list_(
    directory: Directory, organization_id: str, limit: int | None = None, after: str | None = None
) -> list[KeyRecord]:
    """An organization's keys, oldest first, including revoked ones."""
    return await keys.list_(directory, organization_id, limit, after)


async def revoke(
    directory: Directory, key_id: str, organization_id: str | None = None, by: Actor = OPERATOR
) -> KeyRecord:
    """Revokes a key and its sessions. A repeated call changes nothing. Raises AccessError if there is no such key.

    Operators pass no organization. Requests pass the caller's, so they cannot see the keys of others.
    """
    revoked = await keys.revoke(directory, key_id, organization_id, by)
    if revoked is None:
        raise _not_found(key_id)
    return revoked


def state_of(key: KeyRecord) -> CredentialState:
    """The key's current state."""
    if key.revoked_at is not None:
        return CredentialState.ENDED
    return CredentialState.ACTIVE if key.is_active(now()) else CredentialState.EXPIRED


def _new(
    secret: Secret,
    organization_id: str,
    name: str,
    *,
    scopes: frozenset[Scope],
    database_id: str | None,
    expires_at: datetime | None,
    replaces: str | None = None,
) -> NewKeyRecord:
    return NewKeyRecord(
        id=new_id(Kind.KEY),
        organization_id=organization_id,
        name=name,
        digest=secret.digest,
        shown_prefix=secret.shown_prefix,
        last_four=secret.last_four,
        scopes=scopes,
        database_id=database_id,
        expires_at=expires_at,
        replaces=replaces,
    )


def _not_found(key_id: str) -> AccessError:
    return AccessError("key_not_found", f"There is no key {key_id!r}.")
