"""The error classes of the service.

    ServiceError
    ├ RequestError      malformed, too large, several statements: the client must change the request
    ├ AccessError       unauthenticated, forbidden, not found (also for what belongs to others)
    ├ ConflictError     name taken, idempotency conflict
    ├ LimitError        rate, quota, concurrency, result size, deadline
    ├ StatementError    the customer's SQL failed: sqlstate, position, hint
    ├ EngineError       database or directory unavailable, connection lost, outcome unknown
    └ InternalError     a bug, or the service's own SQL failed; its message is generic

`http/server/errors.py` maps each class to an HTTP status; `http/server/error_codes.py` lists the codes.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from plainsql_server.core.result import Notices


class Outcome(StrEnum):
    """Whether a failed request took effect."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fields of PostgreSQL's error for a failed statement, apart from its message."""

    sqlstate: str | None = None
    detail: str | None = None
    position: int | None = None
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    constraint: str | None = None
    data_type: str | None = None
    severity: str | None = None
    # The call stack, and if the statement that failed was one that a function ran, its text and the position in it.
    context: str | None = None
    internal_query: str | None = None
    internal_position: int | None = None
    # Where in PostgreSQL's source the error was raised.
    source_file: str | None = None
    source_line: str | None = None
    source_function: str | None = None


class ServiceError(Exception):
    """The base class of every error that can reach a client.

    `message` and `hint` are for the client. `internal_context` is only for the service's log. With `is_stale_read`, a
    result was not the one that the request expects: the caller can start again, but the same request would fail again.
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
        is_stale_read: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.diagnosis = diagnosis or _NO_DIAGNOSIS
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.outcome = outcome or self.default_outcome
        self.statement_index = statement_index
        self.internal_context = internal_context
        self.is_stale_read = is_stale_read
        # How long the failed request used a connection to PostgreSQL.
        self.exec_us = 0
        # What PostgreSQL reported before the failure.
        self.notices: Notices | None = None


class RequestError(ServiceError):
    """The request is invalid. Sending it again does not help."""


class AccessError(ServiceError):
    """The caller is not authenticated, lacks a permission, or asked for something that does not exist for it."""


class ConflictError(ServiceError):
    """The request conflicts with existing state."""


class LimitError(ServiceError):
    """A limit was exceeded. The message names the limit, its value and the tier."""


class StatementError(ServiceError):
    """PostgreSQL rejected the customer's statement, or it failed."""

    default_outcome = Outcome.ROLLED_BACK


class EngineError(ServiceError):
    """Something that the service depends on is unavailable, or a connection to it was lost."""


class InternalError(ServiceError):
    """The service's own fault. The client gets a generic message and the request id; the log gets the details."""

    default_outcome = Outcome.UNKNOWN

    def __init__(self, internal_context: str) -> None:
        super().__init__(
            "service_failure",
            "The service failed. The operator can find the cause in the log by the request id.",
            internal_context=internal_context,
        )


# When to retry what is unavailable or overloaded for a moment. Clients get it as Retry-After, in whole seconds.
RETRY_AFTER_MS = 1_000

_NO_DIAGNOSIS = Diagnosis()
# The SQLSTATE classes whose primary messages quote values: data exceptions, and what a function raises itself.
_QUOTES_VALUES = ("22", "P0")
_ADDED = re.compile(r"(?:DETAIL|HINT|CONTEXT|QUERY|STATEMENT|LOCATION|LINE \d+): ")


def without_detail(text: str) -> str:
    """libpq's text about a failed connection without what PostgreSQL adds to its primary messages."""
    return "\n".join(line for line in text.strip().splitlines() if not _ADDED.match(line))


def described(error: BaseException) -> str:
    """An error's class and message, for the log.

    Of an error that PostgreSQL returned, only the SQLSTATE and the primary message: its detail, its context and the
    line of SQL that it points to may contain customers' data.
    """
    name, sqlstate = type(error).__name__, getattr(error, "sqlstate", None)
    if not isinstance(sqlstate, str):
        return f"{name}: {without_detail(str(error))}"
    if sqlstate.startswith(_QUOTES_VALUES):
        return f"{name}: {sqlstate}"
    return f"{name}: {sqlstate} {getattr(getattr(error, 'diag', None), 'message_primary', None) or ''}".rstrip()
