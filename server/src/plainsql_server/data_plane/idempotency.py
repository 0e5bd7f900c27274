"""Idempotent requests: a request with an idempotency key takes effect once, however often it is sent.

The changes and the record of the request are committed in the same PostgreSQL transaction, so the record is right even
if the answer was lost. Keys are scoped to a database. Requests that only read are not recorded, because they can safely
run twice.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plainsql_server.core.clock import Deadline, now
from plainsql_server.core.errors import AccessError, ConflictError, EngineError, LimitError, Outcome, ServiceError
from plainsql_server.core.observation import FailureObserved
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.data_plane.databases import Databases
from plainsql_server.data_plane.transaction import (
    Job,
    TransactionResult,
    Transactions,
    run_attempts,
)
from plainsql_server.data_plane.transaction_request import TransactionRequest
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.sqlstate import engine_unavailable
from plainsql_server.engine.execution.records import AlreadyRecorded, Found, Record, look_up, purge
from plainsql_server.engine.pool.pools import Pools
from plainsql_server.limits.tiers import TIERS

# The interval between two checks whether a commit succeeded. PostgreSQL may need seconds to come back.
_LOOK_AGAIN_S = 0.05
# How often old records are removed, by a request that writes a new one.
_PURGE_EVERY_S = 600.0
_PURGE_TIMEOUT_MS = 10_000


class RequestOutcome(StrEnum):
    """The outcome of a request."""

    COMMITTED = "committed"
    NOT_EXECUTED = "not_executed"
    IN_PROGRESS = "in_progress"


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """The idempotency key of a request, a hash that identifies the request, and how to render its answer."""

    key: str
    request_id: str
    body_hash: bytes
    render: Callable[[TransactionResult], bytes]


@dataclass(slots=True)
class RecordedAnswer:
    """A recorded answer: of this request, or replayed from an earlier one."""

    body: bytes
    replayed: bool
    transaction: TransactionResult


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """Whether a request took effect, and when."""

    outcome: RequestOutcome
    finished_at: str | None = None


class Idempotency:
    """Runs transactions once, and looks up their outcome."""

    def __init__(self, databases: Databases, pools: Pools, transactions: Transactions) -> None:
        self._databases = databases
        self._pools = pools
        self._transactions = transactions
        self._purge_after_s: dict[str, float] = {}

    async def run(self, principal: Principal, request: TransactionRequest, keyed: KeyedRequest) -> RecordedAnswer:
        """Runs the request or replays its recorded answer. Raises ConflictError if another request used the key."""
        job = await self._transactions.prepare(principal, request)
        transaction = TransactionResult()
        if job.first.plan.read_only:
            await run_attempts(job, transaction)
            return RecordedAnswer(keyed.render(transaction), False, transaction)
        record = job.first.plan.record = _record(keyed, job, transaction)
        while True:
            try:
                await run_attempts(job, transaction)
                self._purge_now_and_then(job)
                return RecordedAnswer(record.body, False, transaction)
            except AlreadyRecorded:
                if (found := await _look_up(job, keyed.key)).body is not None:
                    return _replayed(found, keyed)
                # The record has expired. Remove it and try again.
                await _purge(job, job.deadline)
            except EngineError as error:
                if error.outcome is not Outcome.UNKNOWN:
                    raise
                return _replayed(await _resolve(job, keyed.key, error), keyed)

    async def find(self, principal: Principal, database: str | None, wanted: str, *, is_key: bool) -> RequestStatus:
        """The outcome of a request, by its id or its key. Raises AccessError if there is no record of that id."""
        place = await self._databases.find(principal, database)
        limits = TIERS[principal.tier]
        pool = self._pools.for_address(place.address, principal.organization_id)
        deadline = Deadline.after_ms(limits.statement_timeout_ms)
        async with pool.lease(limits.concurrent_statements, deadline) as lease:
            found = await look_up(lease.connection, place.record_secret, wanted)
            lease.session_state = SessionState.NOTHING
        if found.body is not None:
            return RequestStatus(RequestOutcome.COMMITTED, found.finished_at)
        if found.in_progress:
            return RequestStatus(RequestOutcome.IN_PROGRESS)
        if is_key:
            return RequestStatus(RequestOutcome.NOT_EXECUTED)
        raise AccessError(
            "request_not_found",
            f"There is no record of the request {wanted}.",
            hint="Only requests that write and have an Idempotency-Key are recorded, for 24 hours.",
        )

    def _purge_now_and_then(self, job: Job) -> None:
        now_s = time.monotonic()
        if self._purge_after_s.get(job.first.place.database_id, 0.0) < now_s:
            # Set the time first, so that concurrent requests don't purge, too.
            self._purge_after_s[job.first.place.database_id] = now_s + _PURGE_EVERY_S
            job.first.pool.cell.start(self._purge_quietly(job))

    async def _purge_quietly(self, job: Job) -> None:
        try:
            await _purge(job, Deadline.after_ms(_PURGE_TIMEOUT_MS))
        except ServiceError as error:
            # The answer is already sent. The next recorded request tries again.
            self._purge_after_s.pop(job.first.place.database_id, None)
            failure = FailureObserved(now(), "failure", "data_plane.idempotency", f"purging: {error.message}")
            job.first.pool.cell.observe(failure)


def _record(keyed: KeyedRequest, job: Job, transaction: TransactionResult) -> Record:
    def render(results: Sequence[Result]) -> bytes:
        transaction.results, transaction.now = results, job.first.plan.now
        return keyed.render(transaction)

    return Record(job.first.place.record_secret, keyed.key, keyed.request_id, keyed.body_hash, render)


def _replayed(found: Found, keyed: KeyedRequest) -> RecordedAnswer:
    assert found.body is not None
    if found.body_hash != keyed.body_hash:
        raise ConflictError(
            "idempotency_key_reused",
            "This idempotency key was already used with a different request.",
            hint="Use a new key for each new request.",
        )
    return RecordedAnswer(found.body, True, TransactionResult())


async def _look_up(job: Job, key: str) -> Found:
    async with job.first.pool.lease(job.limits.concurrent_statements, job.deadline) as lease:
        found = await look_up(lease.connection, job.first.place.record_secret, key)
        lease.session_state = SessionState.NOTHING
        return found


async def _purge(job: Job, deadline: Deadline) -> None:
    async with job.first.pool.lease(job.limits.concurrent_statements, deadline) as lease:
        await purge(lease.connection, job.first.place.record_secret)
        lease.session_state = SessionState.NOTHING


async def _resolve(job: Job, key: str, lost: EngineError) -> Found:
    """The outcome of a commit whose answer was lost. Raises `lost` if the deadline passes first."""
    while job.deadline.left_s() > 0:
        try:
            found = await _look_up(job, key)
        except (EngineError, LimitError):
            # PostgreSQL is not back yet. Keep trying until the deadline.
            found = None
        if found is not None and found.body is not None:
            return found
        if found is not None and not found.in_progress:
            raise engine_unavailable(lost.internal_context or "", outcome=Outcome.ROLLED_BACK) from lost
        await asyncio.sleep(min(_LOOK_AGAIN_S, job.deadline.left_s()))
    raise lost
