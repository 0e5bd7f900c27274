"""The SQLAlchemy dialect for asyncio: `create_async_engine("plainsql+asyncio://k:svc_k_…@host/database")`.

It is the dialect of `dialect.py` on the asyncio client. SQLAlchemy runs it in greenlets, where a call that has to wait
gives way to the event loop. Requires greenlet: `pip install 'plainsql[asyncio]'`.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sqlalchemy import URL, AsyncAdaptedQueuePool, Pool
from sqlalchemy.util import await_only

from plainsql import dbapi
from plainsql.asyncio_client import AsyncClient, connect_async
from plainsql.dbapi.exceptions import translating
from plainsql.dialect import PlainSQLDialect
from plainsql.errors import Notice
from plainsql.interactive.session import InteractiveSession
from plainsql.result import Result, Row, TransactionResult
from plainsql.streaming import AsyncStream
from plainsql.transactions import TransactionBuilder
from plainsql.transport.wire import Steps, T


class GreenletStream:
    """An asyncio stream that is read from within a greenlet."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self.columns = stream.columns
        self.types = stream.types
        self.read_only = stream.read_only

    def __iter__(self) -> Iterator[Row]:
        return self

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._stream.notices

    def __next__(self) -> Row:
        try:
            return await_only(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        self._stream.close()


class GreenletClient:
    """The asyncio client, called from within a greenlet as if it blocked."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def query(self, sql: str, *params: Any) -> Result:
        return await_only(self._client.query(sql, *params))

    def stream(self, sql: str, *params: Any, read_only: bool | None = None) -> GreenletStream:
        return GreenletStream(await_only(self._client.stream(sql, *params, read_only=read_only)))

    def run_transaction(self, builder: TransactionBuilder) -> TransactionResult:
        return await_only(self._client.run_transaction(builder))

    def interactive(self, *, is_lazy: bool = False) -> InteractiveSession:
        return self._client.interactive(is_lazy=is_lazy)

    def perform(self, steps: Steps[T]) -> T:
        return await_only(self._client.perform(steps))

    def health(self) -> dict[str, Any]:
        return await_only(self._client.health())

    def close(self) -> None:
        self._client.close()


class GreenletCursor(dbapi.Cursor):
    """A cursor whose rows are read from within a greenlet, or after it."""

    async def _async_soft_close(self) -> None:
        """SQLAlchemy calls it before it hands out a result. The rows have arrived, so nothing is left to do."""


class GreenletConnection(dbapi.Connection):
    """A connection on the asyncio client."""

    def cursor(self) -> dbapi.Cursor:
        _ = self.client
        return GreenletCursor(self)


class _AsyncModule(ModuleType):
    """The DB-API module, whose connections use the asyncio client."""

    def __init__(self) -> None:
        super().__init__("plainsql.dbapi")
        self.__dict__.update({**vars(dbapi), "connect": _connect})


def _connect(*, autocommit: bool, rehearse: Any, **settings: Any) -> dbapi.Connection:
    with translating():
        client = connect_async(**settings)
    return GreenletConnection(GreenletClient(client), autocommit=autocommit, rehearse=rehearse)


class PlainSQLAsyncDialect(PlainSQLDialect):
    """SQLAlchemy with asyncio on PlainSQL."""

    is_async = True
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return _AsyncModule()

    @classmethod
    def get_pool_class(cls, url: URL) -> type[Pool]:  # noqa: ARG003  # SQLAlchemy's signature
        return AsyncAdaptedQueuePool
