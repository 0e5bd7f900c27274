"""Maps what PostgreSQL and libpq report to the service's errors.

A failed statement becomes a StatementError, a text that does not parse a RequestError, and a server that is unavailable
or a connection that is lost an EngineError. Only this module interprets SQLSTATEs and error fields in general; a few
modules check for one SQLSTATE that they expect.
"""

import re

from psycopg import errors as driver_errors
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    Diagnosis,
    EngineError,
    Outcome,
    RequestError,
    ServiceError,
    StatementError,
)

_MULTIPLE_STATEMENTS = "cannot insert multiple commands into a prepared statement"
_CHANGED_RESULT_TYPE = "cached plan must not change result type"
_TYPE_IS_GONE = "cache lookup failed for type "
_PREPARED_IS_GONE = 'prepared statement "plainsql_'
_UNBOUND = "bind message supplies 0 parameters"

_SYNTAX_ERROR = "42601"
_PROTOCOL_VIOLATION = "08P01"
SHORTAGE = "53200"
# The lock table, which all tenants of the cell share, is full. The reaper terminates the backend that filled it.
_NO_PLACE = "out of shared memory"
_RETRYABLE = frozenset(["40001", "40P01"])
# Connection exceptions (08), shutdown and start-up (57P01-57P03, 57P05), too many connections (53300).
_UNAVAILABLE = re.compile(r"08...|57P0[1-35]|53300")
# A minor release of PostgreSQL may add a condition before the driver knows its name.
_NEWER_THAN_THE_DRIVER = {"22P07": "datum_version_mismatch"}
_CAMEL_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


def error_from_result(result: PGresult) -> ServiceError:
    """Converts a failed result to the error that the service raises for it."""
    sqlstate = _field(result, DiagnosticField.SQLSTATE) or ""
    message = _field(result, DiagnosticField.MESSAGE_PRIMARY) or "PostgreSQL returned no error message."
    if not sqlstate:
        # The error comes from libpq itself: the connection broke.
        return connection_lost(result.get_error_message())
    if sqlstate == _PROTOCOL_VIOLATION and message.startswith(_UNBOUND):
        # A statement with $1 was sent without parameters.
        return RequestError("wrong_parameter_count", "The statement expects parameters; the request has none.")
    # A statement may raise any SQLSTATE with severity ERROR. Only FATAL and PANIC end the session.
    severity = _field(result, DiagnosticField.SEVERITY_NONLOCALIZED)
    if severity != "ERROR" and _UNAVAILABLE.match(sqlstate):
        return engine_unavailable(f"{sqlstate} {message}", outcome=Outcome.ROLLED_BACK)
    if sqlstate == _SYNTAX_ERROR and message == _MULTIPLE_STATEMENTS:
        return multiple_statements()
    return (RequestError if _is_parse_error(result, sqlstate) else StatementError)(
        condition_name(sqlstate),
        message,
        hint=_field(result, DiagnosticField.MESSAGE_HINT),
        diagnosis=_diagnosis(result, sqlstate),
        retryable=_is_retryable(sqlstate, message),
    )


def multiple_statements() -> RequestError:
    return RequestError(
        "multiple_statements",
        "The request contains more than one statement.",
        hint="Send one statement per request, or send them together to POST /v1/transaction.",
    )


def engine_unavailable(context: str, *, outcome: Outcome = Outcome.NOT_EXECUTED) -> EngineError:
    """The error for a server that cannot be reached or has shut down. `context` goes to the log only."""
    return EngineError(
        "engine_unavailable",
        "The database is temporarily unavailable.",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
        outcome=outcome,
        internal_context=context,
    )


def connection_lost(context: str) -> EngineError:
    """The error for a connection that broke while a statement ran. Whether the statement took effect is unknown."""
    return EngineError(
        "connection_lost",
        "The connection to the database was lost while the statement ran. It may or may not have taken effect.",
        retry_after_ms=RETRY_AFTER_MS,
        outcome=Outcome.UNKNOWN,
        internal_context=context,
    )


def is_stale_plan(error: ServiceError) -> bool:
    """Whether a prepared statement must be prepared again because the schema has changed since."""
    if error.diagnosis.sqlstate == "26000":
        # Earlier in the same transaction, the tenant ran DEALLOCATE ALL.
        return error.message.startswith(_PREPARED_IS_GONE)
    if error.diagnosis.sqlstate == "XX000":
        # A parameter's type was dropped, and perhaps created again under the same name.
        return error.message.startswith(_TYPE_IS_GONE)
    return error.diagnosis.sqlstate == "0A000" and error.message == _CHANGED_RESULT_TYPE


def condition_name(sqlstate: str) -> str:
    """PostgreSQL's condition name (`undefined_table`), or `statement_failed` for an SQLSTATE that a tenant made up."""
    try:
        name = driver_errors.lookup(sqlstate).__name__
    except KeyError:
        return _NEWER_THAN_THE_DRIVER.get(sqlstate, "statement_failed")
    return _CAMEL_HUMP.sub("_", name).strip("_").lower().removesuffix("_ext")


def _is_parse_error(result: PGresult, sqlstate: str) -> bool:
    # Functions raise some of the lexer's SQLSTATEs, too. The source file that raised the error tells them apart.
    if sqlstate != _SYNTAX_ERROR and _field(result, DiagnosticField.SOURCE_FILE) != "scan.l":
        return False
    # Code that was running, such as EXECUTE in a function, had the text parsed, or raised the SQLSTATE itself.
    if result.error_field(DiagnosticField.INTERNAL_QUERY) is not None:
        return False
    points_to_text = result.error_field(DiagnosticField.STATEMENT_POSITION) is not None
    return points_to_text or result.error_field(DiagnosticField.CONTEXT) is None


def _is_retryable(sqlstate: str, message: str) -> bool:
    return sqlstate in _RETRYABLE or (sqlstate == SHORTAGE and ("RWConflictPool" in message or message == _NO_PLACE))


def _diagnosis(result: PGresult, sqlstate: str) -> Diagnosis:
    return Diagnosis(
        sqlstate=sqlstate,
        detail=_field(result, DiagnosticField.MESSAGE_DETAIL),
        position=_position(result, DiagnosticField.STATEMENT_POSITION),
        schema=_field(result, DiagnosticField.SCHEMA_NAME),
        table=_field(result, DiagnosticField.TABLE_NAME),
        column=_field(result, DiagnosticField.COLUMN_NAME),
        constraint=_field(result, DiagnosticField.CONSTRAINT_NAME),
        data_type=_field(result, DiagnosticField.DATATYPE_NAME),
        severity=_field(result, DiagnosticField.SEVERITY),
        context=_field(result, DiagnosticField.CONTEXT),
        internal_query=_field(result, DiagnosticField.INTERNAL_QUERY),
        internal_position=_position(result, DiagnosticField.INTERNAL_POSITION),
        source_file=_field(result, DiagnosticField.SOURCE_FILE),
        source_line=_field(result, DiagnosticField.SOURCE_LINE),
        source_function=_field(result, DiagnosticField.SOURCE_FUNCTION),
    )


def _position(result: PGresult, field: DiagnosticField) -> int | None:
    position = _field(result, field)
    return int(position) if position else None


def _field(result: PGresult, field: DiagnosticField) -> str | None:
    value = result.error_field(field)
    return None if value is None else value.decode(errors="replace")
