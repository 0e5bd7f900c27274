"""Rules about sessions: what a token may be given, how long it lives, and who may ask for one.

Owns creating, refreshing and ending them. Refuses a session that could do more than its key, and one made of
another session.
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
from plainsql_server.directory.sessions import NewSession, SessionRecord
from plainsql_server.limits.tiers import LIVE_SESSIONS

# Both are the specification's.
LIFE = timedelta(hours=24)
EXTENSION = timedelta(hours=24)
# However often it is refreshed, a token that was stolen and forgotten dies within this time of its last refresh.
LONGEST_AHEAD = timedelta(days=30)


async def create(
    directory: Directory, principal: Principal, by: Actor, scopes: Iterable[Scope] | None, database: str | None
) -> tuple[SessionRecord, Secret]:
    """A new session of the key that called, and its token, which exists nowhere else.

    Without scopes it has the key's, without a database the key's. Raises AccessError if a session asks, if the
    key has not the scopes, or is bound to another database; RequestError for a list of scopes that is empty.
    """
    if principal.session_id is not None:
        raise AccessError("forbidden", "A session cannot create sessions; use an API key.")
    granted = principal.scopes if scopes is None else _narrowed(principal, frozenset(scopes))
    database_id = None if database is None else await _database_id(directory, principal, database)
    token, created_at = new_session_token(), now()
    new = NewSession(
        id=new_id(Kind.SESSION),
        organization_id=principal.organization_id,
        key_id=principal.key_id,
        digest=token.digest,
        scopes=granted,
        database_id=database_id,
        created_at=created_at,
        expires_at=created_at + LIFE,
    )
    stored = await sessions.insert(directory, new, LIVE_SESSIONS, by)
    if stored is None:
        raise _not_valid()
    return stored, token


async def refresh(directory: Directory, principal: Principal, by: Actor) -> SessionRecord:
    """The session that called, which ends 24 hours later than before, but at most 30 days from now.

    Raises AccessError if it has ended meanwhile, or if a key called.
    """
    at = now()
    session_id = _session_id(principal)
    extended = await sessions.extend(directory, session_id, EXTENSION, at=at, at_most=at + LONGEST_AHEAD, by=by)
    if extended is None:
        raise _not_valid()
    return extended


async def end(directory: Directory, principal: Principal, by: Actor) -> None:
    """Ends the session that called; a second time changes nothing. Raises AccessError if a key called."""
    await sessions.end(directory, _session_id(principal), now(), by)


def _session_id(principal: Principal) -> str:
    if principal.session_id is None:
        raise AccessError(
            "forbidden", "This route needs a session, not an API key.", hint="POST /v1/session makes one."
        )
    return principal.session_id


def _narrowed(principal: Principal, scopes: frozenset[Scope]) -> frozenset[Scope]:
    if not scopes:
        raise RequestError("no_scopes", "A session needs one scope or more, or none named to have its key's.")
    missing = sorted(str(scope) for scope in scopes if not principal.may(scope))
    if missing:
        raise AccessError("forbidden", f"The key does not have the scope {' and '.join(missing)}.")
    return scopes


async def _database_id(directory: Directory, principal: Principal, name: str) -> str:
    if principal.database not in (None, name):
        raise AccessError("forbidden", f"This key is bound to the database {principal.database!r}.")
    return (await databases.get_by_name(directory, principal.organization_id, name)).id


def _not_valid() -> AccessError:
    return AccessError("unauthenticated", "The API key or session is not valid any more.")
