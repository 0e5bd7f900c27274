"""Everything that can go wrong, as one tree.

    Error
    ├ ServiceError       the service answered, and said no
    │ ├ RequestError     the request itself is wrong; sending it again will not help
    │ ├ AccessError      unauthenticated, forbidden, or not there for you
    │ ├ ConflictError    it contradicts what is there already
    │ ├ LimitError       a limit of your tier was met
    │ ├ StatementError   PostgreSQL refused or failed the statement
    │ ├ EngineError      a part that the service depends on is away
    │ └ InternalError    the service failed; the request id names the failure in the operator's log
    ├ NetworkError       no answer came: `outcome` says whether anything may have happened
    ├ StreamBroken       a stream ended without its end
    ├ ResultError        the result is not what was asked for: no row, too many rows, cut short
    └ SettingsError      there is no address or no key, or they cannot be used

Owns what an error says and which class an answer becomes. The classes below `ServiceError` are those of the
service; `code` is stable and is what to look at. Refuses to print: the command does that.
"""

from collections.abc import Mapping
from typing import Any

# Classes by HTTP status. A status of 200 means that the engine began the statement.
_BY_STATUS = {
    200: "StatementError", 400: "RequestError", 401: "AccessError", 403: "AccessError", 404: "AccessError",
    405: "RequestError", 408: "RequestError", 409: "ConflictError", 413: "RequestError", 415: "RequestError",
    422: "ConflictError", 429: "LimitError", 500: "InternalError", 503: "EngineError",
}  # fmt: skip

# Codes whose class differs from that of their status, and those that may end a stream, which has no status any more.
_BY_CODE = {
    "statement_timeout": "LimitError",
    "transaction_timeout": "LimitError",
    "result_too_large": "LimitError",
    "reset_timed_out": "LimitError",
    "database_limit": "LimitError",
    "key_limit": "LimitError",
    "session_limit": "LimitError",
    "connection_limit": "LimitError",
    "too_few_connections": "LimitError",
    "too_many_participants": "LimitError",
    "too_many_tables": "LimitError",
    "overloaded": "LimitError",
    "rate_limited": "LimitError",
    "engine_unavailable": "EngineError",
    "directory_unavailable": "EngineError",
    "database_not_ready": "EngineError",
    "connection_lost": "EngineError",
    "shutting_down": "EngineError",
    "service_failure": "InternalError",
}


class Error(Exception):
    """Base of every error of this package. `outcome` says whether anything happened, where that is known."""

    outcome: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ServiceError(Error):
    """The service answered with an error; its fields are those of the answer, None where it said nothing."""

    def __init__(self, fields: Mapping[str, Any], *, status: int | None = None, request_id: str | None = None) -> None:
        super().__init__(str(fields.get("message", "The service gave no message.")))
        self.code: str = fields.get("code", "unknown")
        self.sqlstate: str | None = fields.get("sqlstate")
        self.detail: str | None = fields.get("detail")
        self.hint: str | None = fields.get("hint")
        self.position: int | None = fields.get("position")
        self.statement_index: int | None = fields.get("statement_index")
        self.schema: str | None = fields.get("schema")
        self.table: str | None = fields.get("table")
        self.column: str | None = fields.get("column")
        self.constraint: str | None = fields.get("constraint")
        self.retryable: bool = fields.get("retryable", False)
        self.retry_after_ms: int | None = fields.get("retry_after_ms")
        self.outcome = fields.get("outcome")
        self.status = status
        self.request_id = request_id
        # The SQL that `position` counts in, where the caller's text is what was sent.
        self.sql: str | None = None

    def __str__(self) -> str:
        said = [f"{self.code}: {self.message}"]
        said += [f"{name}: {value}" for name, value in (("detail", self.detail), ("hint", self.hint)) if value]
        if self.request_id:
            said.append(f"request id: {self.request_id}")
        return "\n".join(said)


class RequestError(ServiceError):
    """The request itself is wrong; sending it again will not help."""


class AccessError(ServiceError):
    """The credential is unknown, may not do this, or asks for what does not exist for it."""


class ConflictError(ServiceError):
    """The request contradicts what is already there."""


class LimitError(ServiceError):
    """A limit was met; the message names it, its value and the tier."""


class StatementError(ServiceError):
    """PostgreSQL refused or failed the statement: see `sqlstate`, `position`, `constraint`."""


class EngineError(ServiceError):
    """A part that the service depends on is away or was lost."""


class InternalError(ServiceError):
    """The service failed. The request id names this failure in the operator's log."""


class NetworkError(Error):
    """No answer came.

    `outcome` is "not_executed" if the request cannot have reached the service, "committed" if the service
    says that the write was done, and "unknown" in every other case. With `idempotency_key` you can ask again
    (`request_outcome`), or send the same request again, which does nothing twice.
    """

    def __init__(self, message: str, *, outcome: str, idempotency_key: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.idempotency_key = idempotency_key


class StreamBroken(Error):
    """A stream ended without its end; the rows that came before it are not the whole result."""


class ResultError(Error):
    """The result is not what was asked for: no row, more than one, or one that a limit cut short.

    `outcome` is "committed" if it is that of a write, which was done.
    """

    def __init__(self, message: str, *, outcome: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class SettingsError(Error):
    """There is no address or no key, or they cannot be used."""


_CLASSES: dict[str, type[ServiceError]] = {
    kind.__name__: kind
    for kind in (RequestError, AccessError, ConflictError, LimitError, StatementError, EngineError, InternalError)
}


def error_class(status: int, code: str, sqlstate: str | None) -> type[ServiceError]:
    """The class of an answered error. What PostgreSQL says about SQL keeps the class of its status."""
    name = _BY_CODE.get(code) if sqlstate is None else None
    return _CLASSES[name or _BY_STATUS.get(status, "InternalError")]


def service_error(fields: Mapping[str, Any], *, status: int, request_id: str | None) -> ServiceError:
    """The exception for the `error` object of an answer."""
    kind = error_class(status, fields.get("code", ""), fields.get("sqlstate"))
    return kind(fields, status=status, request_id=request_id)
