"""The Python client for PlainSQL: SQL over plain HTTPS, on PostgreSQL.

    import plainsql

    with plainsql.connect() as db:
        for row in db.query("select id, body from notes where id < $1", 10):
            print(row.id, row.body)

The package's public names are imported on first use. So `plainsql --help` doesn't load TLS, and a blocking program
doesn't load asyncio.
"""

# Not imported from typing, which takes as long to import as the rest of `--help`. Type checkers recognize the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from plainsql.asyncio_client import AsyncClient, AsyncTransaction, connect_async
    from plainsql.client import Client, Transaction, connect
    from plainsql.errors import (
        AccessError,
        ConflictError,
        EngineError,
        Error,
        InternalError,
        LimitError,
        NetworkError,
        Notice,
        RequestError,
        ResultError,
        ServiceError,
        SettingsError,
        StatementError,
        StreamBroken,
        TransactionError,
    )
    from plainsql.result import Result, Row, TransactionResult
    from plainsql.streaming import AsyncStream, Stream

VERSION = "0.61.0"

_HOME_OF = {
    **dict.fromkeys(("AsyncClient", "AsyncTransaction", "connect_async"), "plainsql.asyncio_client"),
    **dict.fromkeys(("Client", "Transaction", "connect"), "plainsql.client"),
    **dict.fromkeys(("Result", "Row", "TransactionResult"), "plainsql.result"),
    **dict.fromkeys(("AsyncStream", "Stream"), "plainsql.streaming"),
}

__all__ = [
    "VERSION",
    "AccessError",
    "AsyncClient",
    "AsyncStream",
    "AsyncTransaction",
    "Client",
    "ConflictError",
    "EngineError",
    "Error",
    "InternalError",
    "LimitError",
    "NetworkError",
    "Notice",
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
    "TransactionError",
    "TransactionResult",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'plainsql' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  # see above

    value = getattr(import_module(_HOME_OF.get(name, "plainsql.errors")), name)
    globals()[name] = value
    return value
