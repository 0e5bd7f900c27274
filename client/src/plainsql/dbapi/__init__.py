"""DB-API 2.0 (PEP 249): `plainsql.dbapi.connect(…)`.

A connection works in one of two modes:

- **Transactions**, the default. Statements run at once and return their results, and your code runs in between.
  `commit()` makes them take effect as one serializable transaction, and `rollback()` discards them. Nothing is held
  open in the service: a statement after a write is rehearsed together with what ran before it. If a result has changed
  at the commit, everything is rolled back with SQLSTATE 40001. Savepoints work.
- **Autocommit**. Every statement runs and commits at once. After a write, `rollback()` raises an error, because the
  write cannot be undone.

Parameters are `%s` or `%(name)s`, as in psycopg. In a statement with parameters, write a percent sign as `%%`.
"""

import datetime as dt
import time
from typing import Any

from plainsql.dbapi.connection import Connection, connect
from plainsql.dbapi.cursor import Cursor
from plainsql.dbapi.exceptions import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # PEP 249's name
)

apilevel = "2.0"
# Threads may share the module, but not a connection, because its transactions would get mixed up.
threadsafety = 1
paramstyle = "pyformat"

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802  # PEP 249's name
    return dt.date.fromtimestamp(ticks)  # noqa: DTZ012  # the local date, as in PEP 249


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802  # PEP 249's name
    return dt.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802  # PEP 249's name
    return dt.datetime.fromtimestamp(ticks)  # noqa: DTZ006  # the local time, as in PEP 249


class DBAPITypeObject:
    """Compares equal to the type codes of its category. Type codes are PostgreSQL type names."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: Any) -> bool:
        return other in self._names if isinstance(other, str) else self is other

    def __hash__(self) -> int:
        return hash(self._names)


STRING = DBAPITypeObject("text", "varchar", "bpchar", "name", "char")
BINARY = DBAPITypeObject("bytea")
NUMBER = DBAPITypeObject("int2", "int4", "int8", "numeric", "float4", "float8")
DATETIME = DBAPITypeObject("timestamptz", "timestamp", "date", "time", "timetz", "interval")
ROWID = DBAPITypeObject("oid")

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
