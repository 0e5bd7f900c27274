"""Who calls, and what they may do.

Owns scopes and the identity that a request carries. Refuses to know how it was proven.
"""

from enum import StrEnum
from typing import NamedTuple


class Scope(StrEnum):
    """A right that a route may need. `write` includes `read`; `admin` includes neither."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Principal(NamedTuple):
    """The caller of one request: an API key or a session of an organization."""

    organization_id: str
    key_id: str
    tier: str
    scopes: frozenset[Scope]
    database: str | None = None
    """The database that the credential is bound to, or None where it may use any of its organization's."""
    session_id: str | None = None
    """The session that was shown, or None where it was the key itself."""

    def may(self, scope: Scope) -> bool:
        """Whether this caller holds a scope."""
        return scope in self.scopes or (scope is Scope.READ and Scope.WRITE in self.scopes)
