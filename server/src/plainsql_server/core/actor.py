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

# The name of the operator who runs this process, set by the command line before it does anything.
_operators_name: str | None = None


def name_operator(name: str) -> None:
    """Sets the name that changes by `OPERATOR` have in the audit log."""
    global _operators_name  # noqa: PLW0603  # a process has one operator
    _operators_name = name


def id_of(actor: Actor) -> str | None:
    """The id of an actor: of a key or a session, or an operator's name."""
    return _operators_name if actor.kind == OPERATOR.kind and actor.id is None else actor.id
