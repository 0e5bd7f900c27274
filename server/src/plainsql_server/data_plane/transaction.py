"""Runs several statements for a principal as one serializable transaction.

    result = await transactions.run(principal, TransactionRequest([TransactionStatement("select 1")]))

It checks limits, classifies the statements, finds the databases and retries after conflicts. Usually all statements go
to one database, and a simple commit is enough. If they go to several, `data_plane/spanning.py` runs the attempts;
everything before and after is the same.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from plainsql_server.core.batches import in_batches
from plainsql_server.core.clock import Deadline, monotonic_us
from plainsql_server.core.errors import Outcome, RequestError, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.insert_text import InsertText
from plainsql_server.core.loop_share import share_loop
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import FrozenInsert, Notices, Result
from plainsql_server.core.sql_text import is_empty, refuse_stream_hint
from plainsql_server.data_plane.admission import check_statement, lower
from plainsql_server.data_plane.classification import Classification, classify
from plainsql_server.data_plane.databases import Databases, Place, is_still_without_code
from plainsql_server.data_plane.head_start import HeadStart, SentTransaction
from plainsql_server.data_plane.outcome import complete_error, result_too_large, to_error
from plainsql_server.data_plane.rehearsal import (
    check_may_span,
    check_not_volatile,
    check_statement_counts,
    read_inserts,
)
from plainsql_server.data_plane.retry import DEFAULT_RETRIES, Retries
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement, read_parameter
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.connection.interrupt import InterruptReason
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.encoding.digests import digest_key
from plainsql_server.engine.execution.plan import Plan, TransactionStep
from plainsql_server.engine.execution.transaction import Attempt
from plainsql_server.engine.pool.pool import Pool
from plainsql_server.engine.pool.pools import Pools
from plainsql_server.limits.tiers import TIERS, TRANSACTION_DATABASES, Limits

# Statements whose planning takes a snapshot. Any other first statement could still change the isolation level.
TAKES_SNAPSHOT = frozenset(["SELECT", "VALUES", "TABLE", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"])
# Statements of this length, taken together, take a millisecond or more to classify.
_LONG = 2_000
# Parameters that take as long as a statement.
_PARAMETERS = 16


@dataclass(slots=True)
class TransactionResult:
    """The result of a transaction. It is complete once the transaction has committed."""

    results: Sequence[Result] = ()
    attempts: int = 0
    commit_us: int = 0
    queue_us: int = 0
    participants: int = 1
    dry_run: bool = False
    # The transaction's time, if it is a dry run or has digests.
    now: str | None = None
    # Notices that came with no statement, but at the commit.
    notices: Notices | None = None
    id: str = field(default_factory=lambda: new_id(Kind.TRANSACTION))

    @property
    def affected_rows(self) -> int:
        return sum(result.completion.affected_rows for result in self.results)

    @property
    def exec_us(self) -> int:
        return sum(result.completion.exec_us for result in self.results) + self.commit_us


@dataclass(slots=True)
class TransactionPart:
    """The part of a transaction that runs in one database. The plan has all steps; those in `indexes` run there."""

    plan: Plan
    classifications: Sequence[Classification]
    indexes: Sequence[int]
    place: Place
    pool: Pool
    # Records usage: rows, microseconds in PostgreSQL, bytes.
    note_usage: Callable[[int, int, int], None]
    # Time spent in PostgreSQL over all attempts. Only used if there are several parts.
    used_us: int = 0

    def session_state(self, began_s: float) -> SessionState:
        """The session state that the statements may have left behind."""
        without_code = is_still_without_code(self.place.without_code and self.place.certain, began_s)
        return max(each.state_left(without_code) for each in self.classifications)


@dataclass(slots=True)
class Job:
    """A validated transaction, with everything needed to run it."""

    organization_id: str
    parts: Sequence[TransactionPart]
    max_retries: int
    timeout_ms: int
    began_s: float
    deadline: Deadline
    limits: Limits
    tier: str
    # Runs the attempts if there are several parts.
    spanning: "Spans"
    # How long it held a connection, over all attempts.
    held_us: int = 0
    # Set until its first attempt if the fast lane has begun it.
    head_start: HeadStart | None = None

    @property
    def kind(self) -> str:
        """What error messages call it."""
        return "transaction"

    @property
    def first(self) -> TransactionPart:
        """The part of the first statement. The request is recorded in its database."""
        return self.parts[0]

    def sql_of(self, index: int | None) -> str | None:
        """The statement with this number; None if no statement has failed."""
        return None if index is None else self.first.plan.steps[index].sql

    def stale_steps(self) -> int:
        """The number of steps that the next attempt runs in another way."""
        return sum(len(part.plan.fresh) + len(part.plan.unfrozen) for part in self.parts)


class Spans(Protocol):
    """Runs transactions that have several parts."""

    async def run(self, job: Job, transaction: TransactionResult) -> None:
        """Like `run_attempts`."""


class Transactions:
    """Runs transactions."""

    def __init__(self, databases: Databases, pools: Pools, tally: Tally, spanning: Spans) -> None:
        self._databases = databases
        self._pools = pools
        self._tally = tally
        self._spanning = spanning

    async def run(
        self,
        principal: Principal,
        request: TransactionRequest,
        head_start: HeadStart | None = None,
        began_s: float | None = None,
    ) -> TransactionResult:
        """Runs the transaction and returns its results. Raises ServiceError. Cancelling it cancels the statement.

        `head_start` and `began_s` are given if the fast lane has begun it, `began_s` alone if it has no slot yet.
        """
        transaction = TransactionResult()
        await run_attempts(await self.prepare(principal, request, head_start, began_s), transaction)
        return transaction

    async def prepare(
        self,
        principal: Principal,
        request: TransactionRequest,
        head_start: HeadStart | None = None,
        began_s: float | None = None,
    ) -> Job:
        """Validates the transaction as far as possible without running it."""
        limits = TIERS[principal.tier]
        timeout_ms = lower(request.timeout_ms, limits.transaction_timeout_ms)
        began_s = time.monotonic() if began_s is None else began_s
        deadline = Deadline(began_s + timeout_ms / 1000)
        classifications = await _classify(request, limits, principal.tier)
        plan = await _plan(request, limits, await read_inserts(request.statements))
        parts: list[TransactionPart] = []
        if head_start is None:
            places = await self._places(principal, request, deadline)
            if len(places) > 1:
                check_may_span(request.statements, dry_run=request.dry_run)
        else:
            places = [(head_start.place, range(len(request.statements)))]
        for where in places:
            own = replace(plan, fresh=set()) if parts else plan
            parts.append(await self._part(principal, where, own, classifications, deadline))
        max_retries = DEFAULT_RETRIES if request.max_retries is None else request.max_retries
        return Job(
            principal.organization_id, parts, max_retries, timeout_ms, began_s, deadline, limits, principal.tier,
            self._spanning, head_start=head_start,
        )  # fmt: skip

    async def _places(
        self, principal: Principal, request: TransactionRequest, deadline: Deadline
    ) -> list[tuple[Place, Sequence[int]]]:
        """The databases of the statements, each with the indexes of its statements; the first statement's is first."""
        names = {statement.database or request.database for statement in request.statements}
        if len(names) == 1:
            # The common case.
            place = await self._databases.find(principal, names.pop(), deadline)
            return [(place, range(len(request.statements)))]
        by_name: dict[str | None, list[int]] = {}
        for index, statement in enumerate(request.statements):
            by_name.setdefault(statement.database or request.database, []).append(index)
        if len(by_name) > TRANSACTION_DATABASES:
            raise _too_many_databases()
        places: dict[str, tuple[Place, list[int]]] = {}
        for name, indexes in by_name.items():
            place = await self._databases.find(principal, name, deadline)
            # One statement may name the default database, and another may use it without naming it.
            places.setdefault(place.database_id, (place, []))[1].extend(indexes)
        return [(place, sorted(indexes)) for place, indexes in places.values()]

    async def _part(
        self,
        principal: Principal,
        where: tuple[Place, Sequence[int]],
        plan: Plan,
        every: Sequence[Classification],
        deadline: Deadline,
    ) -> TransactionPart:
        place, indexes = where
        classifications = every if len(indexes) == len(every) else [every[index] for index in indexes]
        plan.first_takes_no_snapshot = classifications[0].command not in TAKES_SNAPSHOT
        plan.read_only |= place.address.read_only
        if plan.needs_time:
            plan.digest_key = digest_key(place.record_secret)
        if place.without_code and not plan.read_only and any(each.may_store_code for each in classifications):
            await self._databases.prepare_for_code(place, deadline)
            place = replace(place, without_code=False)
        # Statements that only read and change rows, without customer code, can't change the transaction's mode.
        plan.guarded = any(
            each.state_left(place.without_code and place.certain) > SessionState.SEQUENCES for each in classifications
        )
        pool = self._pools.for_address(place.address, principal.organization_id)
        count = partial(self._tally.note_usage, principal.organization_id, place.database_id)
        return TransactionPart(plan, classifications, indexes, place, pool, count)


async def run_attempts(job: Job, transaction: TransactionResult) -> None:
    """Runs the transaction until it commits, fails permanently, or runs out of attempts or time."""
    try:
        await (job.spanning.run if len(job.parts) > 1 else _run_alone)(job, transaction)
    except ServiceError as error:
        may_write = not any(part.place.address.read_only for part in job.parts)
        complete_error(error, job.held_us, may_write=may_write, sql=job.sql_of(error.statement_index))
        raise


async def _run_alone(job: Job, transaction: TransactionResult) -> None:
    """Runs a transaction in one database."""
    rows: list[bytes] = []
    size_bytes = 0
    is_done = False
    try:
        await try_until_done(job, transaction, _run_once)
        is_done = True
        rows = [row for result in transaction.results for row in result.rows]
        frozen = [each.frozen for each in transaction.results if isinstance(each.frozen, FrozenInsert)]
        size_bytes = sum(map(len, rows)) + sum([each.size_bytes for each in frozen])
    finally:
        # A request that never got a connection used nothing, however long it waited.
        if job.held_us:
            job.first.note_usage(len(rows), transaction.exec_us if is_done else job.held_us, size_bytes)


async def try_until_done(
    job: Job, transaction: TransactionResult, run_once: Callable[[Job, TransactionResult], Awaitable[None]]
) -> None:
    """Makes attempts until one succeeds or fails permanently."""
    job.held_us = 0
    retries = Retries(job.first.pool.retry_lane, job.max_retries, job.deadline)
    while True:
        async with retries.attempt():
            transaction.attempts = retries.attempts
            stale_before = job.stale_steps()
            try:
                return await run_once(job, transaction)
            except ServiceError as error:
                # A step whose plan was stale is prepared again. If that doesn't help once, it never does.
                was_stale = job.stale_steps() > stale_before
                if not (retries.allow(error) or (was_stale and job.deadline.left_s())):
                    raise


async def _run_once(job: Job, transaction: TransactionResult) -> None:
    part = job.first
    head_start, job.head_start = job.head_start, None
    limit, deadline = job.limits.concurrent_statements, job.deadline
    lease = part.pool.lease(limit, deadline) if head_start is None else head_start.take()
    async with lease:
        leased_us = monotonic_us() if head_start is None else head_start.sent_us()
        lease.connection.max_result_bytes = job.limits.result_bytes
        part.plan.session_state = part.session_state(job.began_s)
        attempt = Attempt(lease, part.pool.catalog, part.plan)
        try:
            transaction.results = await _run_attempt(attempt, head_start)
            transaction.dry_run, transaction.now = part.plan.dry_run, part.plan.now
        except (ServiceError, ResultTooLarge) as error:
            too_large = Outcome.UNKNOWN if attempt.committing else Outcome.ROLLED_BACK
            # Before the check, which may be interrupted: what has failed is known.
            reported = to_error(error, lease.ended_for, job, too_large=too_large)
            reported.notices = lease.connection.take_notices()
            if reported.is_stale_read:
                await check_not_volatile(lease, part.pool.catalog, part.plan, reported.statement_index or 0, deadline)
            raise reported from (None if reported is error else error)
        finally:
            job.held_us += monotonic_us() - leased_us
            lease.session_state = part.session_state(job.began_s)
        transaction.commit_us = attempt.commit_us
        transaction.notices = lease.connection.take_notices()
        transaction.queue_us = lease.queue_us
        if lease.ended_for is InterruptReason.TOO_LARGE:
            raise result_too_large(job, Outcome.COMMITTED)


async def _run_attempt(attempt: Attempt, head_start: HeadStart | None) -> list[Result]:
    sent = None if head_start is None else head_start.sent
    if isinstance(sent, SentTransaction):
        return await attempt.resume(sent.sent_us, sent.ended_us)
    return await attempt.run()


async def _classify(request: TransactionRequest, limits: Limits, tier: str) -> list[Classification]:
    if not request.statements:
        raise RequestError("empty_transaction", "The transaction has no statements.")
    check_statement_counts(request.statements, limits, tier)
    classifications, length = list[Classification](), 0
    for index, statement in enumerate(request.statements):
        try:
            check_statement(statement.sql, statement.params, limits, tier)
            refuse_stream_hint(statement.sql)
            classifications.append(classify(statement.sql))
            if is_empty(statement.sql):
                # PostgreSQL does not treat this as an error, so the transaction would continue and commit.
                raise RequestError("empty_statement", "The statement is empty.")
        except ServiceError as error:
            error.statement_index = index
            raise
        length += len(statement.sql)
        if length > _LONG:
            # Classifying them took a while, and there may be thousands more. Let other requests run.
            length = 0
            await share_loop()
    check_statement_counts(request.statements, limits, tier, [each.command for each in classifications])
    return classifications


def _too_many_databases() -> RequestError:
    return RequestError(
        "too_many_databases", f"A transaction can span at most {TRANSACTION_DATABASES} databases; this one names more."
    )


def _cost(statement: TransactionStatement) -> int:
    """What it takes to look at each parameter, for `in_batches`."""
    return 1 + len(statement.params) // _PARAMETERS


async def _plan(request: TransactionRequest, limits: Limits, freezes: Sequence[InsertText | str | None]) -> Plan:
    steps: list[TransactionStep] = []
    async for batch in in_batches(request.statements, _cost):
        for index, each in enumerate(batch, len(steps)):
            params = [read_parameter(raw, index) for raw in each.params]
            encoding, freeze = each.encoding or request.encoding, freezes[index]
            steps.append(TransactionStep(each.sql, params, each.expect, each.digest, each.rows, freeze, encoding))
    return Plan(
        steps,
        request.read_only,
        lower(request.max_rows, limits.result_rows),
        limits.result_bytes,
        dry_run=request.dry_run,
        check_deferred=request.check_deferred,
        nows=request.nows,
    )
