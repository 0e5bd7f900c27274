"""The DB-API exceptions, and how the client's errors map to them.

    Warning
    Error
    ├ InterfaceError
    └ DatabaseError
      ├ DataError            SQLSTATE 22: an invalid value; or a result truncated by a limit
      ├ OperationalError     network, service, limits, serialization failures
      ├ IntegrityError       SQLSTATE 23: a constraint violation
      ├ InternalError        the service failed; or the transaction has failed, and you must call rollback()
      ├ ProgrammingError     invalid SQL, parameters or credential
      └ NotSupportedError    not supported by the service, such as a read that can't be verified

Each has `sqlstate`, `code`, `outcome` and `notices`. Its `__cause__` is the client's own error.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from plainsql import errors as client


class Warning(Exception):  # PEP 249's name
    """A notice or warning of PostgreSQL, in `messages`. This module never raises it."""

    notice: client.Notice

    @classmethod
    def of(cls, notice: client.Notice) -> "Warning":
        made = cls(str(notice))
        made.notice = notice
        return made


class Error(Exception):
    """Base class of the errors below. `outcome` says whether the statement was executed, if that is known.

    `notices` are PostgreSQL's notices and warnings of the statement that failed.
    """

    sqlstate: str | None = None
    code: str | None = None
    outcome: str | None = None
    notices: tuple[client.Notice, ...] = ()


class InterfaceError(Error):
    """The module was used incorrectly."""


class DatabaseError(Error):
    """An error related to the database."""


class DataError(DatabaseError):
    """A value is invalid or out of range."""


class OperationalError(DatabaseError):
    """An error outside the program's control, such as a lost connection or a limit."""


class CommittedError(OperationalError):
    """A rollback found writes that autocommit had committed."""


class IntegrityError(DatabaseError):
    """A constraint was violated."""


class InternalError(DatabaseError):
    """The service failed."""


class ProgrammingError(DatabaseError):
    """The SQL or its parameters are invalid."""


class NotSupportedError(DatabaseError):
    """The service does not support this."""


_BY_SQLSTATE: dict[str, type[DatabaseError]] = {
    "0A": NotSupportedError, "21": ProgrammingError, "22": DataError, "23": IntegrityError, "25": InternalError,
    "3B": InternalError, "40": OperationalError, "42": ProgrammingError, "53": OperationalError, "54": OperationalError,
    "55": OperationalError, "57": OperationalError,
}  # fmt: skip
_BY_CLASS: dict[type[client.Error], type[DatabaseError]] = {
    client.RequestError: ProgrammingError,
    client.AccessError: ProgrammingError,
    client.ConflictError: OperationalError,
    client.LimitError: OperationalError,
    client.StatementError: DatabaseError,
    client.EngineError: OperationalError,
    client.InternalError: InternalError,
    client.NetworkError: OperationalError,
    client.StreamBroken: OperationalError,
    client.ResultError: DataError,
    client.SettingsError: OperationalError,
    client.TransactionError: OperationalError,
}
_BY_CODE: dict[str, type[DatabaseError]] = {"volatile_read": NotSupportedError}


def translated(error: client.Error) -> DatabaseError:
    """The DB-API error for one of the client's errors."""
    sqlstate = getattr(error, "sqlstate", None)
    code = getattr(error, "code", None)
    kind = _BY_SQLSTATE.get((sqlstate or "")[:2]) or _BY_CODE.get(code or "") or _BY_CLASS[type(error)]
    made = kind(str(error))
    made.sqlstate = sqlstate
    made.code = code
    made.outcome = error.outcome
    made.notices = getattr(error, "notices", ())
    return made


@contextmanager
def translating() -> Iterator[None]:
    """Converts the client's errors to DB-API errors."""
    try:
        yield
    except client.Error as error:
        raise translated(error) from error
    except TypeError as error:
        raise ProgrammingError(str(error)) from error
