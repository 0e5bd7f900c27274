"""The Python client of PlainSQL: SQL over plain HTTPS, on PostgreSQL.

    import plainsql

    with plainsql.connect() as db:
        for row in db.query("select id, body from notes where id < $1", 10):
            print(row.id, row.body)

Owns the names that programs use. What most programs do not need (asyncio) is imported when it is asked for, so that
the command starts quickly. Refuses to import the server.
"""

from typing import TYPE_CHECKING, Any

from plainsql.client import Client, Transaction, connect
from plainsql.errors import (
    AccessError,
    ConflictError,
    EngineError,
    Error,
    InternalError,
    LimitError,
    NetworkError,
    RequestError,
    ResultError,
    ServiceError,
    SettingsError,
    StatementError,
    StreamBroken,
)
from plainsql.result import Result, Row, TransactionResult
from plainsql.streaming import Stream

if TYPE_CHECKING:
    from plainsql.asyncio_client import AsyncClient, connect_async

VERSION = "0.61.0"

__all__ = [
    "VERSION",
    "AccessError",
    "AsyncClient",
    "Client",
    "ConflictError",
    "EngineError",
    "Error",
    "InternalError",
    "LimitError",
    "NetworkError",
    "RequestError",
    "Result",
    "ResultError",
    "Row",
    "ServiceError",
    "SettingsError",
    "StatementError",
    "Stream",
    "StreamBroken",
    "Transaction",
    "TransactionResult",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    if name in ("AsyncClient", "connect_async"):
        from plainsql import asyncio_client  # noqa: PLC0415  # asyncio is slow to import

        return getattr(asyncio_client, name)
    raise AttributeError(f"module 'plainsql' has no attribute {name!r}")
