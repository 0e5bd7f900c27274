"""Transactions that span several databases: two-phase commit, one at a time per organization.

The steps are:

1. Take the spanning lock, which is a record in the directory.
2. Run the statements, in order.
3. PREPARE TRANSACTION on every participant.
4. Decide: one UPDATE of the record.
5. COMMIT PREPARED on every participant.
6. Free the record.

Nothing is prepared before the record exists, nothing is committed before the record says so, and the record is freed
only when nothing is prepared any more. So a process that finds the record later can finish an interrupted transaction
(`control_plane/spanning.py`).

This makes transactions atomic. The spanning lock makes them serializable: two transactions that span databases never
overlap, and each database serializes everything else itself; see decision 0015. Nothing is retried after the decision.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from enum import Enum, IntEnum, auto
from functools import partial
from itertools import groupby
from typing import Any, NoReturn

from plainsql_server.core.clock import Deadline, monotonic_us, now
from plainsql_server.core.errors import EngineError, LimitError, Outcome, ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.observation import FailureObserved, Observe
from plainsql_server.core.result import joined
from plainsql_server.data_plane.outcome import timed_out, to_error
from plainsql_server.data_plane.spanning_lock import SpanningLock, SpanningLocks, lock_lost
from plainsql_server.data_plane.transaction import Job, TransactionPart, TransactionResult, try_until_done
from plainsql_server.engine.connection.sqlstate import connection_lost, engine_unavailable
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.execution.plan import Results
from plainsql_server.engine.execution.records import AlreadyRecorded
from plainsql_server.engine.execution.spanning import Participant, commit_anew, gid_of, new_gid
from plainsql_server.engine.pool.pool import Lease

# After the decision, committing is attempted for at least this long, even if the deadline has passed.
_COMMIT_AT_LEAST_S = 1.0
_COMMIT_AGAIN_S = 0.05
# After that, a connection on which PostgreSQL does not respond is closed.
_LAST_WORD_S = 5.0
# The caller is answered this long after the deadline at the latest, even if a cell or the directory does not respond.
# It is a little more than ending a statement takes (`engine/connection/interrupt.py`), and less than the documented
# second.
_ANSWER_AFTER_S = 0.95


class SpanningStep(Enum):
    """The steps of the protocol, in order. Tests kill the process after each of them."""

    CLAIMED = auto()
    BEGUN = auto()
    """The first database has run its statements; the others have not started."""
    RUN = auto()
    PREPARE_SENT_TO_ONE = auto()
    PREPARE_SENT_TO_ALL = auto()
    PREPARED = auto()
    DECIDED = auto()
    COMMIT_SENT_TO_ONE = auto()
    COMMIT_SENT_TO_ALL = auto()
    COMMITTED = auto()
    FREED = auto()
    UNDOING = auto()
    """Something failed; nothing is rolled back yet."""
    UNDONE = auto()
    """Everything is rolled back; the record is not freed yet."""


OnStep = Callable[[SpanningStep], None]


class _Stage(IntEnum):
    """How far a transaction is, which determines the outcomes that are still possible."""

    RUNNING = auto()
    PREPARING = auto()
    """Prepared transactions may exist, and must be ended."""
    DECIDING = auto()
    """The directory was asked to store the decision to commit."""
    DECIDED = auto()
    COMMITTED = auto()
    """Committed in every database; the record is not freed yet."""


class _Progress:
    """The progress of a transaction, for the request that waits for it."""

    def __init__(self) -> None:
        self.stage = _Stage.RUNNING
        # The request no longer waits. If the decision had not started by then, it never does: the caller already got
        # the error that everything was rolled back.
        self.is_abandoned = False

    def abandon(self, running: "asyncio.Task[None]") -> None:
        """Stops waiting. The transaction is rolled back in the background, unless it is being decided."""
        self.is_abandoned = True
        if self.stage is _Stage.RUNNING:
            running.cancel()

    def error_after_deadline(self, job: Job, id_: str) -> ServiceError:
        """The error if the deadline has passed and a participant or the directory does not respond."""
        if self.stage >= _Stage.DECIDED:
            return _shows_later(f"no answer in time: {id_}")
        if self.stage is _Stage.DECIDING:
            return connection_lost(f"the directory does not answer whether it is decided: {id_}")
        return timed_out(job, Outcome.ROLLED_BACK)


class Spanning:
    """Runs transactions that span databases."""

    def __init__(self, locks: SpanningLocks, observe: Observe, on_step: OnStep | None = None) -> None:
        self._locks = locks
        self._observe = observe
        self._on_step: OnStep = on_step or _go_on

    async def run(self, job: Job, transaction: TransactionResult) -> None:
        """Returns once it has committed everywhere. Raises ServiceError, at most one second after the deadline.

        If it is not finished by then, or if this is cancelled, it continues in the background: it is rolled back,
        unless it is being decided.
        """
        transaction.participants = len(job.parts)
        progress = _Progress()
        running = job.first.pool.cell.start(self._run(job, transaction, progress))
        running.add_done_callback(_hear)
        try:
            await asyncio.wait([running], timeout=job.deadline.left_s() + _ANSWER_AFTER_S)
        finally:
            if not running.done():
                progress.abandon(running)
        if running.done():
            running.result()
        elif progress.stage is not _Stage.COMMITTED:
            raise progress.error_after_deadline(job, transaction.id)

    async def _run(self, job: Job, transaction: TransactionResult, progress: _Progress) -> None:
        asked_us = monotonic_us()
        databases = [part.place.database_id for part in job.parts]
        # The id in the answer is the id of the record in the directory, so operators can find it. A request may need a
        # second record, if the first run was abandoned.
        transaction.id = new_id(Kind.TRANSACTION)
        is_done = False
        try:
            async with self._locks.hold(
                transaction.id, job.organization_id, new_gid(len(databases)), databases, job.deadline
            ) as lock:
                self._on_step(SpanningStep.CLAIMED)
                transaction.queue_us = monotonic_us() - asked_us
                await try_until_done(job, transaction, partial(self._run_once, lock, progress))
            is_done = True
        finally:
            _note_usage(job, transaction, is_done)

    async def _run_once(
        self, lock: SpanningLock, progress: _Progress, job: Job, transaction: TransactionResult
    ) -> None:
        async with AsyncExitStack() as stack:
            leases = await _lend(stack, job)
            leased_us = monotonic_us()
            for part in job.parts:
                part.plan.session_state = part.session_state(job.began_s)
            attempt = _Attempt(job, leases, lock, progress, self._on_step)
            try:
                await attempt.run(transaction)
            finally:
                job.held_us += monotonic_us() - leased_us
                attempt.note_used()
                for lease, part in zip(leases, job.parts, strict=True):
                    lease.session_state = part.session_state(job.began_s)
        # The connections are released first, because the directory may not respond.
        if lock.is_in_doubt:
            await self._free(lock)
            self._on_step(SpanningStep.FREED)

    async def _free(self, lock: SpanningLock) -> None:
        try:
            await lock.free()
        except ServiceError as error:
            # Everything is committed, so the request succeeds. Recovery frees the record.
            context = f"freeing a record: {error.internal_context}"
            self._observe(FailureObserved(now(), "failure", "data_plane.spanning", context))


class _Attempt:
    """One attempt, with a connection to each participant."""

    def __init__(
        self, job: Job, leases: Sequence[Lease], lock: SpanningLock, progress: _Progress, on_step: OnStep
    ) -> None:
        self._job = job
        self._leases = leases
        self._lock = lock
        self._progress = progress
        self._on_step = on_step
        self._results = Results()
        self._participants = [
            Participant(lease, part.pool.catalog, part.plan, self._results, gid_of(lock.gid, number))
            for number, (lease, part) in enumerate(zip(leases, job.parts, strict=True))
        ]

    async def run(self, transaction: TransactionResult) -> None:
        """Returns once every participant has committed. Raises the error to report."""
        try:
            await self._run_steps()
            self._on_step(SpanningStep.RUN)
            transaction.results = self._results.results
            began_us = monotonic_us()
            if self._job.first.plan.read_only:
                await self._end_reading()
            else:
                await self._prepare()
                await self._commit()
            transaction.commit_us = monotonic_us() - began_us
            transaction.notices = joined(lease.connection.take_notices() for lease in self._leases)
            self._progress.stage = _Stage.COMMITTED
        except (ServiceError, ResultTooLarge, AlreadyRecorded) as error:
            if self._lock.is_in_doubt:
                # It is decided, or may be, so it must not be rolled back.
                raise
            await self._undo(error)

    def note_used(self) -> None:
        for part, participant in zip(self._job.parts, self._participants, strict=True):
            part.used_us += participant.used_us

    async def _run_steps(self) -> None:
        """Runs the statements in order. Consecutive statements of one database run together."""
        by_step = sorted((index, number) for number, part in enumerate(self._job.parts) for index in part.indexes)
        for number, run in groupby(by_step, key=lambda each: each[1]):
            if number > 0 and not self._participants[number].has_begun:
                self._on_step(SpanningStep.BEGUN)
            indexes = [index for index, _ in run]
            is_last = indexes[-1] == self._job.parts[number].indexes[-1]
            await self._participants[number].run_steps(indexes, is_last=is_last)

    async def _end_reading(self) -> None:
        await _all(each.end_reading() for each in self._participants)
        # Only now is it known that no other transaction spanned the databases meanwhile.
        await self._lock.end_reading()

    async def _prepare(self) -> None:
        self._progress.stage = _Stage.PREPARING
        sent = []
        try:
            for each in self._participants:
                await each.send_prepare()
                sent.append(each)
                self._on_step(SpanningStep.PREPARE_SENT_TO_ONE if len(sent) == 1 else SpanningStep.PREPARE_SENT_TO_ALL)
        finally:
            await _all(each.read_prepare() for each in sent)
        self._on_step(SpanningStep.PREPARED)

    async def _commit(self) -> None:
        """Stores the decision, then commits on every participant."""
        for each in self._participants:
            # A cancel request that is still in flight could hit the commit.
            each.check_not_ended()
        if self._progress.is_abandoned:
            # The caller already got the error that it was rolled back.
            raise engine_unavailable("it was prepared too late", outcome=Outcome.ROLLED_BACK)
        self._progress.stage = _Stage.DECIDING
        until = Deadline(max(self._job.deadline.at_s, time.monotonic() + _COMMIT_AT_LEAST_S))
        for lease in self._leases:
            lease.live_until(Deadline(until.at_s + _LAST_WORD_S))
        if not await self._lock.decide(until):
            self._progress.stage = _Stage.PREPARING
            raise lock_lost()
        self._progress.stage = _Stage.DECIDED
        self._on_step(SpanningStep.DECIDED)
        for number, each in enumerate(self._participants):
            each.send_commit()
            self._on_step(SpanningStep.COMMIT_SENT_TO_ALL if number else SpanningStep.COMMIT_SENT_TO_ONE)
        parts = zip(self._participants, self._job.parts, strict=True)
        await _all(_see_committed(each, part, until) for each, part in parts)
        self._on_step(SpanningStep.COMMITTED)

    async def _undo(self, error: ServiceError | ResultTooLarge | AlreadyRecorded) -> NoReturn:
        """Rolls everything back and raises the error to report."""
        self._on_step(SpanningStep.UNDOING)
        certain = await asyncio.gather(*(_rolled_back(each) for each in self._participants))
        self._on_step(SpanningStep.UNDONE)
        self._progress.stage = _Stage.RUNNING
        # Recovery ends what may still be prepared. Because it was not decided, recovery rolls it back.
        self._lock.is_in_doubt = not all(certain)
        if isinstance(error, AlreadyRecorded):
            raise error
        ended = next((lease for lease in self._leases if lease.ended_for is not None), self._leases[0])
        reported = to_error(error, ended.ended_for, self._job, too_large=Outcome.ROLLED_BACK)
        reported.notices = joined(lease.connection.take_notices() for lease in self._leases)
        if reported.retryable and (self._lock.is_in_doubt or self._progress.is_abandoned):
            reported = engine_unavailable("a participant was lost while it prepared", outcome=Outcome.ROLLED_BACK)
        raise reported from (None if reported is error else error)


async def _lend(stack: AsyncExitStack, job: Job) -> list[Lease]:
    """A connection to the database of each part, in the order of the parts.

    The slots of a cell are reserved all at once, and all requests take the cells in the same order. So no request holds
    some slots while it waits for others, which could deadlock.
    """
    by_address = sorted(enumerate(job.parts), key=lambda each: each[1].place.address)
    leases = {number: part.pool.lease(job.limits.concurrent_statements, job.deadline) for number, part in by_address}
    for cell, needed in Counter(part.pool.cell for _, part in by_address).items():
        may_have = next(part.pool.queue.organization.max_running for _, part in by_address if part.pool.cell is cell)
        if may_have < needed:
            raise LimitError(
                "too_many_participants",
                f"The transaction needs {needed} connections to one cell at once, but this process may open only"
                f" {may_have} for your organization.",
            )
        await cell.reservations.take(needed, job.deadline)
        stack.callback(cell.reservations.release, needed)
    for number, _ in by_address:
        lease = await stack.enter_async_context(leases[number])
        lease.connection.max_result_bytes = job.limits.result_bytes
    return [leases[number] for number in range(len(job.parts))]


async def _rolled_back(participant: Participant) -> bool:
    """Whether it is certain that nothing stays prepared. It is not if PostgreSQL does not respond."""
    try:
        async with asyncio.timeout(_LAST_WORD_S):
            return await participant.roll_back()
    except TimeoutError:
        return participant.give_up()


async def _see_committed(participant: Participant, part: TransactionPart, until: Deadline) -> None:
    """Returns when it is committed. Raises EngineError if its cell is unavailable for too long; it is still committed,
    once the cell is back.
    """
    if await participant.read_commit():
        return await participant.tidy()
    while True:
        try:
            async with asyncio.timeout(max(until.left_s(), _COMMIT_AT_LEAST_S)):
                return await commit_anew(part.pool, participant.gid)
        except (ServiceError, TimeoutError) as error:
            if not until.left_s():
                raise _shows_later(str(error)) from error
        await asyncio.sleep(_COMMIT_AGAIN_S)


def _shows_later(context: str) -> EngineError:
    return EngineError(
        "commit_delayed",
        "The transaction is committed, but one of its databases is unavailable. The changes appear there once it is"
        " back.",
        outcome=Outcome.COMMITTED,
        internal_context=f"committing what is prepared: {context}",
    )


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all of it to completion, then raises the first failure."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _note_usage(job: Job, transaction: TransactionResult, is_done: bool) -> None:
    if not job.held_us:
        # A request that never got a connection used nothing.
        return
    for part in job.parts:
        if not is_done and not part.used_us:
            # None of its statements ran.
            continue
        results = [transaction.results[index] for index in part.indexes] if is_done else []
        rows = [row for result in results for row in result.rows]
        exec_us = sum(result.completion.exec_us for result in results) if is_done else part.used_us
        part.note_usage(len(rows), exec_us, sum(map(len, rows)))


def _go_on(step: SpanningStep) -> None:
    """Does nothing after a step. Tests pass their own function."""


def _hear(task: "asyncio.Task[None]") -> None:
    # Retrieve the exception: if the request no longer waits for it, asyncio would log it as unretrieved.
    if not task.cancelled():
        task.exception()
