"""One statement, run for one principal, its result collected.

Owns the steps between an authenticated request and the engine: limits, database, lease, collection.
Refuses to render: rows come encoded from the engine room, and the envelope is `http/`'s.
"""

from dataclasses import dataclass

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import EngineError, LimitError, Outcome, RequestError, StatementError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.core.result import Result
from plainsql_server.core.statement import Statement, refuse_what_has_no_place
from plainsql_server.data_plane.databases import Databases, address_of
from plainsql_server.engine.execution import PLAIN, Encoding, ResultStream
from plainsql_server.engine.pool import Lease, Pool, Pools, Reason
from plainsql_server.limits.tiers import TIERS, Limits

# Commands that leave nothing behind in a session, unless a function that they call does.
_LEAVES_NOTHING = frozenset(["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE", "EXPLAIN"])


@dataclass(slots=True)
class QueryRequest:
    """What the caller asked for; None where it left the choice to us."""

    statement: Statement
    database: str | None = None
    encoding: Encoding = PLAIN
    max_rows: int | None = None
    timeout_ms: int | None = None
    read_only: bool = False


class Queries:
    """Runs single statements."""

    def __init__(self, databases: Databases, pools: Pools) -> None:
        self._databases = databases
        self._pools = pools

    async def run(self, principal: Principal, request: QueryRequest) -> Result:
        """The statement's whole result. Raises ServiceError; cancelling it cancels the statement."""
        limits = TIERS[principal.tier]
        command = _check(request.statement, limits, principal.tier)
        timeout_ms = min(request.timeout_ms or limits.statement_timeout_ms, limits.statement_timeout_ms)
        deadline = Deadline.after_ms(timeout_ms)
        record = await self._databases.find(principal, request.database)
        pool = self._pools.for_address(address_of(record, principal))
        async with pool.lease(deadline) as lease:
            if command not in _LEAVES_NOTHING or "set_config" in request.statement.sql:
                lease.leave_unclean()
            try:
                return await _collect(lease, pool, principal, request, limits)
            except (StatementError, EngineError) as error:
                if lease.ended_for is not None and error.outcome is Outcome.ROLLED_BACK:
                    raise _ended(lease.ended_for, timeout_ms, limits, principal.tier) from error
                raise


def _check(statement: Statement, limits: Limits, tier: str) -> str:
    if len(statement.sql) > limits.statement_bytes or len(statement.sql.encode()) > limits.statement_bytes:
        raise RequestError(
            "statement_too_large", f"A statement may have {limits.statement_bytes} bytes in the tier {tier!r}."
        )
    if len(statement.params) > limits.parameters:
        raise RequestError(
            "too_many_parameters",
            f"A statement may have {limits.parameters} parameters in the tier {tier!r}; this one has"
            f" {len(statement.params)}.",
        )
    return refuse_what_has_no_place(statement.sql)


async def _collect(lease: Lease, pool: Pool, principal: Principal, request: QueryRequest, limits: Limits) -> Result:
    stream = ResultStream(lease.connection, pool.catalog, request.encoding)
    await stream.start(request.statement, read_only=request.read_only or not principal.may(Scope.WRITE))
    max_rows = limits.result_rows if request.max_rows is None else min(request.max_rows, limits.result_rows)
    rows: list[bytes] = []
    size_bytes = 0
    truncated = False
    while (batch := await stream.next_batch()) is not None:
        # One row more than wanted proves that there are more; the rest is read and dropped, so that a
        # statement that also writes still commits.
        truncated = truncated or len(rows) + len(batch) > max_rows
        kept = batch[: max_rows - len(rows)]
        size_bytes += sum(map(len, kept))
        if size_bytes > limits.result_bytes:
            # Read on: only the engine's last word tells whether the statement took effect before it was ended.
            lease.interrupt(Reason.TOO_LARGE)
            kept = []
        rows += kept
    if lease.ended_for is Reason.TOO_LARGE:
        raise _too_large(limits, principal.tier, Outcome.COMMITTED)
    assert stream.completion is not None
    columns = [column.name for column in stream.columns]
    return Result(columns, [column.type for column in stream.columns], rows, truncated, stream.completion)


def _ended(reason: Reason, timeout_ms: int, limits: Limits, tier: str) -> LimitError:
    if reason is Reason.TOO_LARGE:
        return _too_large(limits, tier, Outcome.ROLLED_BACK)
    return LimitError(
        "statement_timeout",
        f"The statement did not finish within {timeout_ms} ms and was cancelled (tier {tier!r}).",
        outcome=Outcome.ROLLED_BACK,
    )


def _too_large(limits: Limits, tier: str, outcome: Outcome) -> LimitError:
    return LimitError(
        "result_too_large",
        f"The result is larger than {limits.result_bytes} bytes, the limit of a buffered result in the tier {tier!r}.",
        hint="Ask for fewer rows or columns.",
        outcome=outcome,
    )
