"""All errors of this package:

    Error
    ├ ServiceError       the service returned an error
    │ ├ RequestError     the request is invalid; repeating it won't help
    │ ├ AccessError      unauthenticated, forbidden, or not found
    │ ├ ConflictError    the request conflicts with the current state
    │ ├ LimitError       a limit of your tier was exceeded
    │ ├ StatementError   PostgreSQL rejected the statement, or it failed
    │ ├ EngineError      a component that the service depends on is unavailable
    │ └ InternalError    the service failed; the operator can find the cause in the log by the request id
    ├ NetworkError       no response arrived; `outcome` says whether the request may have been executed
    ├ StreamBroken       a stream ended early
    ├ ResultError        unexpected result: no row, too many rows, or truncated
    ├ TransactionError   an interactive transaction can't go on: it has failed, or it is too large
    └ SettingsError      the URL or the key is missing or invalid

The subclasses of `ServiceError` correspond to the service's error classes. In your code, check `code`: it is stable.
`message` is one short sentence. The text of an error, `str(error)`, has several lines, also with the SQL and values of
rows: it is for logs, not for the users of a web page. `exit_code` is what the command `plainsql` exits with.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

# Classes by HTTP status. Status 200 means that PostgreSQL had started the statement.
_BY_STATUS = {
    200: "StatementError", 400: "RequestError", 401: "AccessError", 403: "AccessError", 404: "AccessError",
    405: "RequestError", 408: "RequestError", 409: "ConflictError", 413: "RequestError", 415: "RequestError",
    422: "ConflictError", 429: "LimitError", 500: "InternalError", 503: "EngineError",
}  # fmt: skip

# Codes whose class differs from their status's, and codes that can end a stream, which no longer has a status.
_BY_CODE = {
    "statement_timeout": "LimitError",
    "transaction_deadline_exceeded": "LimitError",
    "result_too_large": "LimitError",
    "reset_timed_out": "LimitError",
    "database_limit": "LimitError",
    "branch_too_large": "LimitError",
    "key_limit": "LimitError",
    "session_limit": "LimitError",
    "restore_limit": "LimitError",
    "restore_timed_out": "LimitError",
    "connection_limit": "LimitError",
    "too_few_connections": "LimitError",
    "too_many_incomplete_requests": "LimitError",
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
# Where the service's own hint speaks of HTTP: what to do in Python, with SQLAlchemy and in the command alike.
_HINTS = {
    "multiple_statements": "Run one statement at a time. To run several together, use a transaction.",
    "volatile_read": "Run it before the transaction and pass its values as parameters. If only the order of its rows "
    "differs, order by a unique column, too.",
}

# What the command exits with, and programs that do the same.
_EXIT_FAILED = 1
_EXIT_SETTINGS = 2
_EXIT_ACCESS = 3
_EXIT_UNAVAILABLE = 4
_EXIT_RATE_LIMITED = 5
_NOT_FOUND = 404

# Enough to recognize a statement in a message.
_SHOWN_SQL = 300


class Notice(NamedTuple):
    """What PostgreSQL reported besides a result.

    Attributes: `severity` (NOTICE, WARNING or INFO), `code` (its SQLSTATE), `message`, and `detail` and `hint`, or
    None. As text, it looks as in psql: `NOTICE:  …`.
    """

    severity: str
    code: str
    message: str
    detail: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        parts = ((self.severity, self.message), ("DETAIL", self.detail), ("HINT", self.hint))
        return "\n".join(f"{name}:  {text}" for name, text in parts if text is not None)


def notices_in(answer: Mapping[str, Any]) -> tuple[Notice, ...]:
    """The notices of a response, or of one result in it. If some were left out, the last one says how many."""
    if "notices" not in answer and "notices_omitted" not in answer:
        return ()
    found = [Notice(*(each.get(field) for field in Notice._fields)) for each in answer.get("notices", ())]
    if omitted := answer.get("notices_omitted"):
        found.append(Notice("NOTICE", "00000", f"{omitted} more notices were left out."))
    return tuple(found)


class Error(Exception):
    """Base class of this package's errors. `outcome` says whether the request was executed, if that is known."""

    outcome: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def exit_code(self) -> int:
        """The exit code of the command `plainsql` for this error, for programs that run as jobs."""
        return _EXIT_FAILED


class ServiceError(Error):
    """The service returned an error. The attributes are the fields of the response, or None if absent.

    `hint` is the client's own where the service's speaks of HTTP. `notices` are those that the failed statement raised.
    """

    def __init__(self, fields: Mapping[str, Any], *, status: int | None = None, request_id: str | None = None) -> None:
        super().__init__(str(fields.get("message", "The service returned an error without a message.")))
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
        self.notices: tuple[Notice, ...] = ()
        # The SQL that `position` refers to, if it was sent exactly as the caller wrote it.
        self.sql: str | None = None
        # The statement of an interactive transaction that failed, if it isn't the one that was run last.
        self.earlier_sql: str | None = None

    @property
    def place(self) -> str | None:
        """Which statement of a transaction failed, counted from 1, and how it begins."""
        if self.statement_index is None:
            return None
        sql = self.sql or self.earlier_sql
        number = str(self.statement_index + 1)
        return f"{number}: {_shortened(sql)}" if sql else number

    @property
    def exit_code(self) -> int:
        """3 if the credential was rejected or lacks a scope, 5 if a rate limit was reached, otherwise 1.

        EngineError and InternalError have 4.
        """
        # A write that is refused because it was sent read-only has the same code. Only the hint tells them apart.
        if self.code == "read_only_sql_transaction" and "scope" in (self.hint or ""):
            return _EXIT_ACCESS
        return _EXIT_RATE_LIMITED if self.code == "rate_limited" else _EXIT_FAILED

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        failed = _shortened(self.earlier_sql) if self.earlier_sql else None
        fields = (
            ("statement", None if failed else self.place), ("detail", self.detail), ("hint", self.hint),
            ("failed statement", failed),
        )  # fmt: skip
        lines += [f"{name}: {value}" for name, value in fields if value]
        if self.request_id:
            lines.append(f"request id: {self.request_id}")
        return "\n".join(lines)


class RequestError(ServiceError):
    """The request is invalid. Repeating it won't help."""


class AccessError(ServiceError):
    """The credential is unknown or lacks permission, or the resource doesn't exist for it."""

    @property
    def exit_code(self) -> int:
        return _EXIT_FAILED if self.status == _NOT_FOUND else _EXIT_ACCESS


class ConflictError(ServiceError):
    """The request conflicts with the current state."""


class LimitError(ServiceError):
    """A limit was exceeded. The message names the limit, its value and the tier."""


class StatementError(ServiceError):
    """PostgreSQL rejected the statement, or it failed: see `sqlstate`, `position` and `constraint`."""


class EngineError(ServiceError):
    """A component that the service depends on is unavailable, or the connection to it was lost."""

    @property
    def exit_code(self) -> int:
        return _EXIT_UNAVAILABLE


class InternalError(ServiceError):
    """The service failed. The operator can find the cause in the log by the request id."""

    @property
    def exit_code(self) -> int:
        return _EXIT_UNAVAILABLE


class NetworkError(Error):
    """No response arrived, or one was lost and the next attempt was rejected.

    `outcome` is "not_executed" if the request cannot have reached the service, "committed" if the service
    confirmed that the write was committed, and "unknown" otherwise. With `idempotency_key` you can check the outcome
    later (`request_outcome`), or safely repeat the request: it never runs twice. `is_untrusted` is True if the
    certificate of the service isn't trusted: repeating the request won't help until you correct the settings.
    """

    def __init__(
        self, message: str, *, outcome: str, idempotency_key: str | None = None, is_untrusted: bool = False
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.idempotency_key = idempotency_key
        self.is_untrusted = is_untrusted

    @property
    def exit_code(self) -> int:
        """2 if the certificate isn't trusted, otherwise 4."""
        return _EXIT_SETTINGS if self.is_untrusted else _EXIT_UNAVAILABLE


class StreamBroken(Error):
    """A stream ended early. The rows received so far are not the whole result."""


class ResultError(Error):
    """The result is not what was asked for: no row, more than one row, or truncated by a limit.

    `outcome` is "committed" if the statement was a write; it has taken effect.
    """

    def __init__(self, message: str, *, outcome: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class TransactionError(Error):
    """An interactive transaction can't go on: an earlier statement failed, or the transaction is too large.

    `code` and `sqlstate` are those that PostgreSQL uses for the same condition.
    """

    outcome = "rolled_back"

    def __init__(self, code: str, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.sqlstate = sqlstate


class SettingsError(Error):
    """The URL or the key is missing or invalid."""

    @property
    def exit_code(self) -> int:
        return _EXIT_SETTINGS


_CLASSES: dict[str, type[ServiceError]] = {
    kind.__name__: kind
    for kind in (RequestError, AccessError, ConflictError, LimitError, StatementError, EngineError, InternalError)
}


def error_class(status: int, code: str, sqlstate: str | None) -> type[ServiceError]:
    """The class for an error response. PostgreSQL's own errors (with an SQLSTATE) are classified by status only."""
    name = _BY_CODE.get(code) if sqlstate is None else None
    return _CLASSES[name or _BY_STATUS.get(status, "InternalError")]


def service_error(answer: Mapping[str, Any], *, status: int, request_id: str | None) -> ServiceError:
    """The exception for a response with an `error` object."""
    fields = answer["error"]
    kind = error_class(status, fields.get("code", ""), fields.get("sqlstate"))
    error = kind(fields, status=status, request_id=request_id)
    error.notices = notices_in(answer)
    error.hint = _HINTS.get(error.code, error.hint)
    return error


def _shortened(sql: str) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= _SHOWN_SQL else f"{line[:_SHOWN_SQL]}…"
