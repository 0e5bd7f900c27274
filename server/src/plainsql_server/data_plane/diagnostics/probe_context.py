"""The ground that probes stand on: the service's own ways to one database, and scratch schemas in it.

Owns what a probe may use and how it says what it found. Refuses to know any probe.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics.temporary_schemas import Scratches
from plainsql_server.data_plane.query import Queries, QueryRequest
from plainsql_server.data_plane.service_statements import Visit, Visits
from plainsql_server.data_plane.stream import Streams
from plainsql_server.data_plane.transaction import TransactionRequest, Transactions, TransactionStatement


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a thing happened as promised, and what shows it."""

    supported: bool
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways that customers' requests go."""

    visits: Visits
    scratches: Scratches
    queries: Queries
    transactions: Transactions
    streams: Streams


@dataclass(frozen=True, slots=True)
class Ground:
    """The ways to one database, for one principal."""

    principal: Principal
    database: str | None
    ways: Ways

    async def raw_row(self, sql: str, params: Sequence[bytes] = (), **fields: Any) -> bytes:
        """The first row of a query, as JSON."""
        result = await self.ways.queries.run(self.principal, QueryRequest(sql, params, self.database, **fields))
        return result.rows[0] if result.rows else b"{}"

    async def row(self, sql: str, params: Sequence[bytes] = (), **fields: Any) -> dict[str, Any]:
        """The first row of a query."""
        return msgspec.json.decode(await self.raw_row(sql, params, **fields), type=dict[str, Any])

    async def transaction(self, *statements: TransactionStatement) -> None:
        """Runs a transaction, once: what it is refused for is to be seen."""
        request = TransactionRequest(statements, self.database, max_retries=0)
        await self.ways.transactions.run(self.principal, request)

    def visit(self, timeout_ms: int | None = None) -> AbstractAsyncContextManager[Visit]:
        return self.ways.visits.visit(self.principal, self.database, timeout_ms)

    def scratch(self, *furniture: str) -> AbstractAsyncContextManager[str]:
        """A scratch schema with what these statements make; {s} stands for its name."""
        return self.ways.scratches.schema(
            self.principal, self.database, lambda name: [each.format(s=name).encode() for each in furniture]
        )


Probe = Callable[[Ground], Awaitable[Finding]]


def said(error: ServiceError) -> dict[str, Any]:
    """An error as evidence."""
    told = {"code": error.code, "sqlstate": error.diagnosis.sqlstate, "message": error.message}
    return {name: value for name, value in told.items() if value is not None}
