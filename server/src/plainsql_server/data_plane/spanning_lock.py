"""The spanning lock: only one transaction per organization may span databases at a time.

    async with locks.hold(id_, organization_id, gid, database_ids, deadline) as lock: …

The lock is a record in the directory, which outlives this process: the rule holds without anything in this module. The
lock is granted in the order of requests. Within a process, requests queue up, and the first of them waits in the
directory's queue, so processes alternate, too. In the end, the record is freed, or left to recovery, which finishes
interrupted transactions (`control_plane/spanning.py`).
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from plainsql_server.core.clock import Deadline, now
from plainsql_server.core.errors import (
    RETRY_AFTER_MS,
    EngineError,
    LimitError,
    Outcome,
    ServiceError,
)
from plainsql_server.core.observation import FailureObserved, Observe
from plainsql_server.core.tasks import end
from plainsql_server.directory import spanning
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import NewRecord, SpanningNotifier, SpanningState
from plainsql_server.engine.connection.sqlstate import connection_lost, engine_unavailable

# How long a record belongs to its holder without a renewal. If a process dies, recovery finishes its transaction after
# this time plus the second between two checks. If a process hangs for longer, its transaction is rolled back.
HOLD_S = 5.0
_KEEP_EVERY_S = HOLD_S / 4
# The interval between two checks for the lock if no notification arrives. In each process, one request per organization
# checks, at random times.
_FIRST_LOOK_S = 0.003
_LONGEST_LOOK_S = 0.5
# How many requests of one organization may wait in a process.
_MAX_WAITING = 200
_DECIDE_AGAIN_S = 0.05
# A transaction that is not finished this long after its deadline is stuck. Then its record is left to recovery.
_KEPT_AFTER_S = 10.0


class SpanningLock:
    """The spanning lock while it is held. In the end, its record is freed or left to recovery."""

    def __init__(self, directory: Directory, record: NewRecord, unanswered: "set[asyncio.Task[bool]]") -> None:
        self._directory = directory
        self._unanswered = unanswered
        self.id = record.id
        self.gid = record.gid
        self.is_freed = False
        # Whether it may be decided, or something may be prepared that this process no longer ends.
        self.is_in_doubt = False

    async def decide(self, deadline: Deadline) -> bool:
        """Stores the decision to commit, and returns whether it stands. Asks until the directory answers.

        Raises EngineError at the deadline.
        """
        self.is_in_doubt = True
        while True:
            try:
                self.is_in_doubt = await self._commit(deadline)
                return self.is_in_doubt
            except EngineError as error:
                if not deadline.left_s():
                    # The decision may be stored, now or later. Recovery goes by the record.
                    raise connection_lost(f"{self.id}: {error.internal_context}") from error
                await asyncio.sleep(min(_DECIDE_AGAIN_S, deadline.left_s()))

    async def _commit(self, deadline: Deadline) -> bool:
        # The directory may accept the query and not respond. Cancelling the query would wait for the response, too.
        asking = asyncio.create_task(spanning.commit(self._directory, self.id))
        await asyncio.wait([asking], timeout=deadline.left_s())
        if asking.done():
            return asking.result()
        self._unanswered.add(asking)
        asking.add_done_callback(self._hear)
        raise engine_unavailable("the directory does not respond")

    def _hear(self, asking: "asyncio.Task[bool]") -> None:
        # The answer no longer matters: recovery goes by the record.
        self._unanswered.discard(asking)
        if not asking.cancelled():
            asking.exception()

    async def end_reading(self) -> None:
        """Frees the lock after a read-only transaction. Raises EngineError if the lock was lost meanwhile."""
        if not await spanning.end_reading(self._directory, self.id):
            raise lock_lost()
        self.is_freed = True

    async def free(self) -> None:
        await spanning.free(self._directory, self.id)
        self.is_freed = True


class SpanningLocks:
    """The spanning locks of all organizations."""

    def __init__(self, directory: Directory, notifier: SpanningNotifier, observe: Observe) -> None:
        self._directory = directory
        self._notifier = notifier
        self._observe = observe
        self._queues: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: defaultdict[str, int] = defaultdict(int)
        # Queries to the directory that are no longer awaited.
        self._unanswered: set[asyncio.Task[bool]] = set()

    @asynccontextmanager
    async def hold(
        self, id_: str, organization_id: str, gid: str, database_ids: Sequence[str], deadline: Deadline
    ) -> AsyncIterator[SpanningLock]:
        """Waits for the spanning lock and holds it inside the block. Raises LimitError if the deadline passes first."""
        record = NewRecord(id_, organization_id, gid, database_ids)
        async with self._queue(organization_id, deadline):
            lock = SpanningLock(self._directory, record, self._unanswered)
            keeping = asyncio.create_task(self._keep(record.id, deadline.left_s() + _KEPT_AFTER_S))
            try:
                await self._wait(record, deadline)
                yield lock
            finally:
                self._notifier.forget(organization_id)
                try:
                    # A lease that is renewed after `_leave` would keep recovery waiting.
                    await end(keeping)
                finally:
                    if not lock.is_freed:
                        await self._leave(lock)

    @asynccontextmanager
    async def _queue(self, organization_id: str, deadline: Deadline) -> AsyncIterator[None]:
        if self._waiting[organization_id] >= _MAX_WAITING:
            raise _overloaded("Too many of your organization's spanning transactions are waiting.")
        self._waiting[organization_id] += 1
        queue = self._queues[organization_id]
        try:
            try:
                async with asyncio.timeout(deadline.left_s()):
                    await queue.acquire()
            except TimeoutError:
                raise _not_in_time() from None
            try:
                yield
            finally:
                queue.release()
        finally:
            self._waiting[organization_id] -= 1
            if not self._waiting[organization_id]:
                del self._waiting[organization_id], self._queues[organization_id]

    async def _wait(self, record: NewRecord, deadline: Deadline) -> None:
        word = self._notifier.expect(record.organization_id)
        state: SpanningState | None = await spanning.enter(self._directory, record, HOLD_S)
        look_s = _FIRST_LOOK_S
        while state is SpanningState.WAITING:
            if not deadline.left_s():
                raise _not_in_time()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(look_s * random.uniform(0.5, 1.0), deadline.left_s())):
                    await word.wait()
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
            word.clear()
            state = await spanning.advance(self._directory, record.id, HOLD_S)
        if state is None:
            raise lock_lost()

    async def _keep(self, id_: str, for_s: float) -> None:
        until = Deadline(time.monotonic() + for_s)
        while until.left_s():
            await asyncio.sleep(_KEEP_EVERY_S)
            try:
                await spanning.keep(self._directory, id_, HOLD_S)
            except ServiceError as error:
                # If this persists, recovery takes over the record, and the decision fails.
                self._report("keeping", error)

    async def _leave(self, lock: SpanningLock) -> None:
        try:
            await (spanning.postpone if lock.is_in_doubt else spanning.give_up)(self._directory, lock.id)
        except ServiceError as error:
            # The hold expires, and then recovery finishes the transaction.
            self._report("leaving", error)

    def _report(self, what: str, error: ServiceError) -> None:
        self._observe(
            FailureObserved(now(), "failure", "data_plane.spanning_lock", f"{what}: {error.internal_context}")
        )


def lock_lost() -> EngineError:
    """The error for a transaction that was rolled back because its record was not renewed in time."""
    return engine_unavailable("the record of a spanning transaction was taken over", outcome=Outcome.ROLLED_BACK)


def _not_in_time() -> LimitError:
    return _overloaded(
        "Transactions that span databases run one at a time per organization,"
        " and this one could not start before its deadline."
    )


def _overloaded(reason: str) -> LimitError:
    return LimitError("overloaded", reason, retryable=True, retry_after_ms=RETRY_AFTER_MS)
