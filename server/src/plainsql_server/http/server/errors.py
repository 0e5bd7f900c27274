"""Turns errors into responses: the status of every error, and the shape of its body.

This is the only place that knows statuses. Routes raise a ServiceError and never build an error body themselves.
"""

import msgspec

from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    AccessError,
    ConflictError,
    EngineError,
    InternalError,
    LimitError,
    RequestError,
    ServiceError,
    StatementError,
)
from plainsql_server.http.server.answers import Error, Failure, QueryFailure, QueryTimings, notice_fields
from plainsql_server.http.server.error_codes import CODES
from plainsql_server.http.server.responses import Header, Response

# The status of each error class, and of the codes that differ from their class.
STATUS_OF_CLASS: dict[type[ServiceError], int] = {
    RequestError: 400,
    AccessError: 404,
    ConflictError: 409,
    LimitError: 503,
    StatementError: 200,
    EngineError: 503,
    InternalError: 500,
}
STATUS_OF_CODE: dict[str, int] = {
    "unauthenticated": 401,
    "forbidden": 403,
    "database_suspended": 403,
    # Waiting doesn't help with these, unlike with other limits.
    "database_limit": 403,
    "branch_too_large": 403,
    "key_limit": 403,
    "session_limit": 403,
    "restore_limit": 403,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "request_too_large": 413,
    "statement_too_large": 413,
    "unsupported_content_type": 415,
    "unsupported_content_encoding": 415,
    "idempotency_key_reused": 422,
    "rate_limited": 429,
    "branch_limit": 429,
    # PostgreSQL started the statement, and a limit of the tier ended it.
    "statement_timeout": 200,
    "transaction_deadline_exceeded": 200,
    "reset_timed_out": 200,
    "result_too_large": 200,
}


def status_of(error: ServiceError) -> int:
    return STATUS_OF_CODE.get(error.code) or STATUS_OF_CLASS[type(error)]


def status_of_code(code: str) -> int:
    """The status of one of the codes in `error_codes.py`."""
    return STATUS_OF_CODE.get(code) or STATUS_OF_CLASS[CODES[code].kind]


def error_response(error: ServiceError, request_id: str, *, query_timings: QueryTimings | None = None) -> Response:
    """The response to a failed request. With `query_timings`, it also has the fields of a query's answer."""
    shown = error_object(error)
    content: Failure | QueryFailure
    if query_timings is None:
        content = Failure(error=shown, request_id=request_id)
    else:
        content = QueryFailure(error=shown, timings=query_timings, request_id=request_id)
    reported = notice_fields(error.notices)
    content.notices, content.notices_omitted = reported.notices, reported.notices_omitted
    status = status_of(error)
    return Response(status, msgspec.json.encode(content), _headers(status, error), error_code=error.code)


def error_object(error: ServiceError) -> Error:
    """The JSON form of an error, for any answer that contains one."""
    diagnosis = error.diagnosis
    return Error(
        code=error.code,
        message=error.message,
        sqlstate=diagnosis.sqlstate,
        detail=diagnosis.detail,
        hint=error.hint,
        position=diagnosis.position,
        statement_index=error.statement_index,
        schema=diagnosis.schema,
        table=diagnosis.table,
        column=diagnosis.column,
        constraint=diagnosis.constraint,
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        outcome=error.outcome,
    )


def _headers(status: int, error: ServiceError) -> list[Header]:
    if status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if status == 408:
        # The rest of the body may still arrive and must not be read as a request.
        return [(b"connection", b"close")]
    if status in (429, 503):
        seconds = -(-(error.retry_after_ms or RETRY_AFTER_MS) // 1000)
        return [(b"retry-after", b"%d" % seconds)]
    return []
