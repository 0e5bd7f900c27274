"""PEP 249's exceptions, and which of the client's errors becomes which.

    Warning
    Error
    ├ InterfaceError
    └ DatabaseError
      ├ DataError            SQLSTATE 22: a value that does not fit; a result that a limit cut
      ├ OperationalError     the network, the service, a limit, a serialization failure
      ├ IntegrityError       SQLSTATE 23: a constraint
      ├ InternalError        the service failed
      ├ ProgrammingError     the SQL, its parameters, or the credential is wrong
      └ NotSupportedError    what the service does not have, savepoints for one

Each carries `sqlstate`, `code`, `outcome` and, as its cause, the client's own error.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from plainsql import errors as client


class Warning(Exception):  # PEP 249's name
    """Important, but no error."""


class Error(Exception):
    """Base of the errors below. `outcome` says whether anything was done, where that is known."""

    sqlstate: str | None = None
    code: str | None = None
    outcome: str | None = None


class InterfaceError(Error):
    """The module is used in a way that it cannot be."""


class DatabaseError(Error):
    """Something that concerns the database."""


class DataError(DatabaseError):
    """A value does not fit."""


class OperationalError(DatabaseError):
    """Not the program's fault, or only in part."""


class IntegrityError(DatabaseError):
    """A constraint is violated."""


class InternalError(DatabaseError):
    """The service failed."""


class ProgrammingError(DatabaseError):
    """The SQL or its parameters are wrong."""


class NotSupportedError(DatabaseError):
    """There is no such thing here."""


_BY_SQLSTATE: dict[str, type[DatabaseError]] = {
    "0A": NotSupportedError, "21": ProgrammingError, "22": DataError, "23": IntegrityError, "25": InternalError,
    "40": OperationalError, "42": ProgrammingError, "53": OperationalError, "54": OperationalError,
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
}


def translated(error: client.Error) -> DatabaseError:
    """PEP 249's error for one of the client's."""
    sqlstate = getattr(error, "sqlstate", None)
    kind = _BY_SQLSTATE.get((sqlstate or "")[:2]) or _BY_CLASS[type(error)]
    made = kind(str(error))
    made.sqlstate = sqlstate
    made.code = getattr(error, "code", None)
    made.outcome = error.outcome
    return made


@contextmanager
def translating() -> Iterator[None]:
    """Turns the client's errors into PEP 249's."""
    try:
        yield
    except client.Error as error:
        raise translated(error) from error
    except TypeError as error:
        raise ProgrammingError(str(error)) from error
