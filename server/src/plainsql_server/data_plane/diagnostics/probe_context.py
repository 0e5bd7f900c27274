"""What a probe can use: the executors that run customers' requests, on one database, and temporary schemas in it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.data_plane.diagnostics.temporary_schemas import TemporarySchemas
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.query import Queries
from plainsql_server.data_plane.service_connections import ServiceConnection, ServiceConnections
from plainsql_server.data_plane.stream import Streams
from plainsql_server.data_plane.transaction import Transactions
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """Whether the feature works as documented, and the evidence."""

    supported: bool
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors that run customers' requests."""

    connections: ServiceConnections
    schemas: TemporarySchemas
    queries: Queries
    transactions: Transactions
    streams: Streams


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """One database, used as one principal."""

    principal: Principal
    database: str | None
    executors: Executors

    async def raw_row(self, sql: str, params: Sequence[bytes] = (), **fields: Any) -> bytes:
        """The first row of a query, as JSON."""
        result = await self.executors.queries.run(self.principal, StatementJob(sql, params, self.database, **fields))
        return result.rows[0] if result.rows else b"{}"

    async def row(self, sql: str, params: Sequence[bytes] = (), **fields: Any) -> dict[str, Any]:
        """The first row of a query."""
        return msgspec.json.decode(await self.raw_row(sql, params, **fields), type=dict[str, Any])

    async def transaction(self, *statements: TransactionStatement, dry_run: bool = False) -> Sequence[Result]:
        """Runs a transaction without retries, so that the probe sees a conflict."""
        request = TransactionRequest(statements, self.database, max_retries=0, dry_run=dry_run)
        return (await self.executors.transactions.run(self.principal, request)).results

    def open(self, timeout_ms: int | None = None) -> AbstractAsyncContextManager[ServiceConnection]:
        return self.executors.connections.open(self.principal, self.database, timeout_ms)

    def schema(self, *setup: str) -> AbstractAsyncContextManager[str]:
        """A temporary schema, set up by these statements; {s} stands for its name."""
        return self.executors.schemas.schema(
            self.principal, self.database, lambda name: [each.format(s=name).encode() for each in setup]
        )


Probe = Callable[[ProbeContext], Awaitable[ProbeFinding]]


def evidence_of(error: ServiceError) -> dict[str, Any]:
    """An error as evidence."""
    evidence = {"code": error.code, "sqlstate": error.diagnosis.sqlstate, "message": error.message}
    return {name: value for name, value in evidence.items() if value is not None}
