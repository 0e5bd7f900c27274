"""Sessions that can only read, for callers whose own credential could write.

    secret = await read_sessions.secret_for(principal, secret, by)

What is sent with such a secret runs as PostgreSQL's read-only role, whatever the SQL is. A session is kept in this
process and used again, so that a caller needs one per hour.
"""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import NamedTuple

from plainsql_server.control_plane import sessions
from plainsql_server.core.actor import Actor
from plainsql_server.core.clock import now
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory

_LIFE = timedelta(hours=1)
# A session that ends sooner than this might end while a request uses it.
_LEFT = timedelta(minutes=5)
# One for each caller that is active. Few hundred bytes each.
_KEPT = 1_000


class _Kept(NamedTuple):
    secret: str
    expires_at: datetime


class ReadSessions:
    """The read sessions of this process, by the principal that they stand for."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._kept: OrderedDict[Principal, _Kept] = OrderedDict()

    async def secret_for(self, principal: Principal, secret: str, by: Actor) -> str:
        """A secret with the scope `read` alone: the caller's own, if that has no other, or that of a session.

        Raises AccessError if the caller can't read, LimitError if the organization has too many sessions.
        """
        if principal.scopes == {Scope.READ}:
            return secret
        kept = self._kept.get(principal)
        if kept is None or kept.expires_at - now() < _LEFT:
            kept = await self._create(principal, by)
            self._kept[principal] = kept
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(principal)
        return kept.secret

    def forget(self, principal: Principal) -> None:
        """Creates a new session next time, because the data plane has refused this one."""
        self._kept.pop(principal, None)

    async def _create(self, principal: Principal, by: Actor) -> _Kept:
        # A session can't create sessions; here, its key stands behind both, and the new one has fewer rights.
        key = principal._replace(session_id=None)
        made, token = await sessions.create(
            self._directory, key, by, [Scope.READ], principal.database, life=_LIFE
        )  # fmt: skip
        return _Kept(token.text, made.ends_at)
