"""Connections on which the service runs its own statements in a customer's database, as the customer.

    async with connections.open(principal, database) as service:
        await service.run(b"select 1")

Such statements have the customer's rights, limits, place in the admission queue and deadline, and count as usage.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from plainsql_server.core.clock import Deadline, monotonic_us
from plainsql_server.core.errors import LimitError, Outcome, ServiceError, StatementError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.admission import lower
from plainsql_server.data_plane.databases import Databases, Place
from plainsql_server.data_plane.outcome import OwnLimits, to_error
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.batch import BatchResult, Own, run_batch
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.pool.pool import Lease
from plainsql_server.engine.pool.pools import Pools
from plainsql_server.limits.tiers import TIERS


@dataclass(slots=True)
class ServiceConnection:
    """A connection to a customer's database, for one task."""

    place: Place
    lease: Lease
    row_count: int = 0
    size_bytes: int = 0
    exec_us: int = 0

    @property
    def queue_us(self) -> int:
        return self.lease.queue_us

    async def run(self, *statements: bytes | Own) -> list[BatchResult]:
        """Runs the statements and returns their answers; see `run_batch`. Raises ServiceError."""
        if self.lease.ended_for is not None:
            # Between two exchanges, PostgreSQL runs nothing that a cancel could end, so check here.
            raise StatementError("query_canceled", f"The statement was cancelled: {self.lease.ended_for}.")
        began_us = monotonic_us()
        try:
            answers = await run_batch(self.lease.connection, statements)
        finally:
            self.exec_us += monotonic_us() - began_us
        self._count(answers)
        return answers

    def require_company(self) -> None:
        """Raises LimitError unless the organization may have a second connection in this process at the same time."""
        if not self.lease.has_company:
            raise LimitError(
                "too_few_connections",
                "This needs two connections at once, but this process may open only one for your organization.",
                hint="Contact the operator: the service runs more processes than your tier has concurrent statements.",
            )

    def left_nothing(self) -> None:
        """Declares that the session state is unchanged, so the session need not be cleaned."""
        self.lease.session_state = SessionState.NOTHING

    def _count(self, answers: Sequence[BatchResult]) -> None:
        for answer in answers:
            self.row_count += len(answer.rows)
            self.size_bytes += sum(len(value) for row in answer.rows for value in row if value is not None)


class ServiceConnections:
    """Opens service connections."""

    def __init__(self, databases: Databases, pools: Pools, tally: Tally) -> None:
        self._databases = databases
        self._pools = pools
        self._tally = tally

    async def place(self, principal: Principal, database: str | None) -> Place:
        """Where a connection would go. Raises AccessError or EngineError, like a query."""
        return await self._databases.find(principal, database)

    @asynccontextmanager
    async def open(
        self, principal: Principal, database: str | None, timeout_ms: int | None = None
    ) -> AsyncIterator[ServiceConnection]:
        """A connection, within the tier's statement timeout. Raises ServiceError. Cancelling cancels its statement."""
        limits = TIERS[principal.tier]
        own = OwnLimits(limits, principal.tier, lower(timeout_ms, limits.statement_timeout_ms))
        place = await self.place(principal, database)
        pool = self._pools.for_address(place.address, principal.organization_id)
        async with pool.lease(limits.concurrent_statements, Deadline.after_ms(own.timeout_ms)) as lease:
            leased_us = monotonic_us()
            service = ServiceConnection(place, lease)
            lease.connection.max_result_bytes = limits.result_bytes
            try:
                yield service
            except (ServiceError, ResultTooLarge) as error:
                reported = to_error(error, lease.ended_for, own, too_large=Outcome.ROLLED_BACK)
                raise reported from (None if reported is error else error)
            finally:
                held_us = monotonic_us() - leased_us
                self._tally.note_usage(
                    principal.organization_id, place.database_id, service.row_count, held_us, service.size_bytes
                )
