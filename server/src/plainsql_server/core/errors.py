"""Everything that can go wrong, as one tree.

    ServiceError
    ├ RequestError      malformed, too large, several statements: the caller must change the request
    ├ AccessError       unauthenticated, forbidden, not found (which also hides what isn't yours)
    ├ ConflictError     name taken, idempotency clash
    ├ LimitError        rate, quota, concurrency, result size, deadline
    ├ StatementError    the customer's SQL failed: sqlstate, position, hint
    ├ EngineError       engine or directory unavailable, connection lost, outcome unknown
    └ InternalError     our bug or our own SQL; its message is generic

Owns what an error says. Refuses to know HTTP: one table in `http/` gives each error its status.
"""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Did anything happen?"""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the engine said about a failed statement, beyond its message."""

    sqlstate: str | None = None
    detail: str | None = None
    position: int | None = None
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    constraint: str | None = None


class ServiceError(Exception):
    """Base of every error that may reach a caller.

    `message` and `hint` are for the caller. `internal_context` is for our log and never leaves.
    """

    default_outcome = Outcome.NOT_EXECUTED

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        diagnosis: Diagnosis | None = None,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
        statement_index: int | None = None,
        internal_context: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.diagnosis = diagnosis or _NOTHING_SAID
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.outcome = outcome or self.default_outcome
        self.statement_index = statement_index
        self.internal_context = internal_context


class RequestError(ServiceError):
    """The request itself is wrong; sending it again will not help."""


class AccessError(ServiceError):
    """The caller is unknown, may not do this, or asks for what does not exist for them."""


class ConflictError(ServiceError):
    """The request contradicts what is already there."""


class LimitError(ServiceError):
    """A limit was met; the message names the limit, its value and the tier."""


class StatementError(ServiceError):
    """The engine refused or failed the customer's statement."""

    default_outcome = Outcome.ROLLED_BACK


class EngineError(ServiceError):
    """A part that the service depends on is away or was lost."""


class InternalError(ServiceError):
    """Our fault. The caller sees a generic message and the request id; the log sees the rest."""

    default_outcome = Outcome.UNKNOWN

    def __init__(self, internal_context: str) -> None:
        super().__init__(
            "service_failure",
            "The service failed. The request id names this failure in the operator's log.",
            internal_context=internal_context,
        )


_NOTHING_SAID = Diagnosis()
