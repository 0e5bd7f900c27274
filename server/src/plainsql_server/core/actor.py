"""The actor of a change on the control plane, as recorded in the audit log.

`http/` has checked the actor's scopes before.
"""

from typing import NamedTuple

from plainsql_server.core.principal import Principal


class Actor(NamedTuple):
    """A key, a session, the operator, or the service itself for changes without a request."""

    kind: str
    id: str | None = None
    request_id: str | None = None

    @classmethod
    def of(cls, principal: Principal, request_id: str) -> "Actor":
        if principal.session_id is not None:
            return cls("session", principal.session_id, request_id)
        return cls("key", principal.key_id, request_id)


OPERATOR = Actor("operator")
SERVICE = Actor("service")
