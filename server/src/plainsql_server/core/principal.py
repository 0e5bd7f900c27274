"""Principals and scopes: who sends a request, and what it may do. Authentication happens elsewhere."""

from enum import StrEnum
from typing import NamedTuple


class Scope(StrEnum):
    """A permission that a route can require. `write` includes `read`; `admin` includes neither."""

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
    """The database that the credential is bound to, or None if it may use any of its organization's databases."""
    session_id: str | None = None
    """The session whose token was sent, or None if it was an API key."""

    def may(self, scope: Scope) -> bool:
        """Whether this caller has a scope."""
        return scope in self.scopes or (scope is Scope.READ and Scope.WRITE in self.scopes)
