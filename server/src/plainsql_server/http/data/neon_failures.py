"""How POST /sql reports failures: as the Neon driver expects them, with the fields of our other errors beside.

The driver reads the body of a failure only if the status is 400, and makes an error of its fields. So that is the
status of whatever concerns the statement or the caller. Other statuses reach the program as text.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import (
    ConflictError,
    EngineError,
    InternalError,
    LimitError,
    RequestError,
    ServiceError,
    StatementError,
)
from plainsql_server.http.app.contract import Model
from plainsql_server.http.server.answers import Error, RequestId
from plainsql_server.http.server.errors import error_object, error_response, status_of_code
from plainsql_server.http.server.responses import Response

_BAD_REQUEST = 400
_RESULT_TOO_LARGE = 507
# Of these classes are the errors that the driver must be able to read.
_READ_BY_THE_DRIVER = frozenset([200, 401, 403, 404])
# The SQLSTATEs of our own codes, as far as PostgreSQL has one of that meaning.
SQLSTATES = {
    "unauthenticated": "28P01",
    "forbidden": "42501",
    "database_not_found": "3D000",
    "database_suspended": "55000",
    "malformed_request": "08P01",
    "empty_statement": "42601",
    "multiple_statements": "42601",
    "transaction_control": "0A000",
    "stream_in_transaction": "0A000",
    "listen_not_supported": "0A000",
    "copy_not_supported": "0A000",
    "idempotency_unavailable": "0A000",
    "wrong_parameter_count": "08P01",
    "invalid_parameter": "22P02",
    "null_character": "22021",
    "untranslatable_character": "22P05",
    "query_canceled": "57014",
    "statement_timeout": "57014",
    "transaction_deadline_exceeded": "57014",
    "statement_too_large": "54000",
    "result_too_large": "54000",
    "too_many_statements": "54000",
    "too_many_parameters": "54023",
    "shutting_down": "57P01",
}
_SQLSTATES_OF_CLASSES: dict[type[ServiceError], str] = {
    RequestError: "08P01",
    ConflictError: "55000",
    LimitError: "53400",
    StatementError: "XX000",
    EngineError: "08006",
    InternalError: "XX000",
}

_Text = Annotated[str | None, Meta(description="As PostgreSQL reported it.")]


class SqlFailure(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A failure, with the fields of node-postgres's errors. Fields without a value are omitted."""

    message: Annotated[str, Meta(description="What went wrong.")]
    code: Annotated[str, Meta(description="PostgreSQL's SQLSTATE, or one for an error of the service.")]
    severity: Annotated[str, Meta(description="ERROR or FATAL.")]
    detail: _Text = None
    hint: Annotated[str | None, Meta(description="How to fix the problem.")] = None
    position: Annotated[str | None, Meta(description="Position of the error in your SQL, in characters from 1.")] = None
    internal_position: _Text = None
    internal_query: _Text = None
    where: _Text = None
    schema: _Text = None
    table: _Text = None
    column: _Text = None
    data_type: _Text = None
    constraint: _Text = None
    file: _Text = None
    line: _Text = None
    routine: _Text = None
    success: Annotated[bool, Meta(description="Always false.", extra_json_schema={"const": False})]
    error: Annotated[Error, Meta(description="The error as other routes report it.")]
    request_id: RequestId = msgspec.field(name="request_id")


class SqlFailures:
    """The failures of POST /sql."""

    model: Model = SqlFailure

    def status_of_code(self, code: str) -> int:
        """The status of one of the codes in `error_codes.py`."""
        return _status(code, status_of_code(code))

    def response(self, error: ServiceError, request_id: str) -> Response:
        """The response to a failed request."""
        response = error_response(error, request_id)
        response.status = _status(error.code, response.status)
        if response.status == _BAD_REQUEST:
            response.headers = []
        response.body = msgspec.json.encode(_failure(error, request_id))
        return response


def _status(code: str, usual: int) -> int:
    if code == "result_too_large":
        return _RESULT_TOO_LARGE
    return _BAD_REQUEST if usual in _READ_BY_THE_DRIVER else usual


def sqlstate_of(code: str, kind: type[ServiceError]) -> str:
    """The SQLSTATE for one of our own codes."""
    return SQLSTATES.get(code) or _SQLSTATES_OF_CLASSES[kind]


def _failure(error: ServiceError, request_id: str) -> SqlFailure:
    shown, found = error_object(error), error.diagnosis
    refused = error.code == "unauthenticated"
    return SqlFailure(
        message=f"password authentication failed: {shown.message}" if refused else shown.message,
        code=found.sqlstate or sqlstate_of(error.code, type(error)),
        severity=found.severity or ("FATAL" if refused else "ERROR"),
        detail=found.detail,
        hint=error.hint,
        position=_text(found.position),
        internal_position=_text(found.internal_position),
        internal_query=found.internal_query,
        where=found.context,
        schema=found.schema,
        table=found.table,
        column=found.column,
        data_type=found.data_type,
        constraint=found.constraint,
        file=found.source_file,
        line=found.source_line,
        routine=found.source_function,
        success=False,
        error=shown,
        request_id=request_id,
    )


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
