"""Creates, refreshes and ends sessions.

A session never has more rights than its key. Only a key can create a session.
"""

from collections.abc import Iterable
from datetime import timedelta

from plainsql_server.control_plane import databases
from plainsql_server.core.actor import Actor
from plainsql_server.core.clock import now
from plainsql_server.core.credential import Secret, new_session_token
from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory import sessions
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sessions import NewSessionRecord, SessionRecord

# Both values come from the specification.
LIFE = timedelta(hours=24)
EXTENSION = timedelta(hours=24)
# A limit on refreshing: a stolen, forgotten token expires at most this long after its last refresh.
LONGEST_AHEAD = timedelta(days=30)
# How many an organization may have at a time, in every tier: few enough to be counted at each creation.
LIVE_SESSIONS = 10_000


async def create(
    directory: Directory,
    principal: Principal,
    by: Actor,
    scopes: Iterable[Scope] | None,
    database: str | None,
    *,
    life: timedelta = LIFE,
) -> tuple[SessionRecord, Secret]:
    """Creates a session for the calling key, and returns it with its token, which is stored nowhere.

    Without scopes or a database, the session has those of its key. With a `life` of less than 24 hours, it can't be
    refreshed: a page that it was given to can't keep it. Raises AccessError if the caller is a session, or if
    the key lacks the scopes or is bound to another database; RequestError if the list of scopes is empty.
    """
    if principal.session_id is not None:
        raise AccessError("forbidden", "A session can't create sessions. Use an API key.")
    granted = principal.scopes if scopes is None else _narrowed(principal, frozenset(scopes))
    database_id = None if database is None else await _database_id(directory, principal, database)
    token, created_at = new_session_token(), now()
    new = NewSessionRecord(
        id=new_id(Kind.SESSION),
        organization_id=principal.organization_id,
        key_id=principal.key_id,
        digest=token.digest,
        scopes=granted,
        database_id=database_id,
        created_at=created_at,
        expires_at=created_at + life,
    )
    stored = await sessions.insert(directory, new, LIVE_SESSIONS, by)
    if stored is None:
        raise _not_valid()
    return stored, token


async def refresh(directory: Directory, principal: Principal, by: Actor) -> SessionRecord:
    """Extends the calling session by 24 hours, to at most 30 days from now.

    Raises AccessError if the session has ended meanwhile or has a shorter life, or if the caller is a key.
    """
    at = now()
    session_id = _session_id(principal)
    stored = await sessions.find(directory, session_id, principal.organization_id)
    if stored is not None and stored.is_shorter_than(LIFE):
        raise AccessError(
            "forbidden",
            "This session was created with expires_in_seconds, so it can't be extended.",
            hint="Create another one with the API key: POST /v1/session.",
        )
    extended = await sessions.extend(directory, session_id, EXTENSION, at=at, at_most=at + LONGEST_AHEAD, by=by)
    if extended is None:
        raise _not_valid()
    return extended


async def end(directory: Directory, principal: Principal, by: Actor) -> None:
    """Ends the calling session; a repeated call changes nothing. Raises AccessError if the caller is a key."""
    await sessions.end(directory, _session_id(principal), now(), by)


def _session_id(principal: Principal) -> str:
    if principal.session_id is None:
        raise AccessError(
            "forbidden", "This route requires a session, not an API key.", hint="Create one: POST /v1/session."
        )
    return principal.session_id


def _narrowed(principal: Principal, scopes: frozenset[Scope]) -> frozenset[Scope]:
    if not scopes:
        raise RequestError(
            "no_scopes", "`scopes` is empty. Name at least one scope, or omit it to get the key's scopes."
        )
    missing = sorted(str(scope) for scope in scopes if not principal.may(scope))
    if missing:
        raise AccessError("forbidden", f"The key doesn't have the scope {' and '.join(missing)}.")
    return scopes


async def _database_id(directory: Directory, principal: Principal, name: str) -> str:
    bound_to = principal.database
    found = await databases.get_named(directory, principal.organization_id, bound_to or name)
    if bound_to is not None and name not in (found.name, found.id):
        raise AccessError("forbidden", f"This key is bound to the database {bound_to!r}.")
    return found.id


def _not_valid() -> AccessError:
    return AccessError("unauthenticated", "The API key or session is no longer valid.")
