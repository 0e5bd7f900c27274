"""The baton: the right to span databases, which one transaction of an organization has at a time.

Owns the waiting for it, in the order of asking, and the record that stands for it, until that is freed or left to
whoever finishes what others left (`control_plane/spanning.py`). The record is in the directory and outlives this
process; nothing here is needed for the rule to hold. Within a process requests queue up, and the first of the queue
waits in the directory's line, so that processes take notifier, too. Refuses to know what is done with it.
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from plainsql_server.core.clock import Deadline, now
from plainsql_server.core.errors import EngineError, LimitError, Outcome, ServiceError
from plainsql_server.core.observation import Failure, Observe
from plainsql_server.directory import spanning
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import NewRecord, State
from plainsql_server.directory.spanning_lock import SpanningNotifier
from plainsql_server.engine.connection.sqlstate import connection_lost, engine_away

# How long a record is its holder's without a word from it. What a process that died left in doubt is finished after
# this and the second that passes between two looks; a process that stands still for longer has its transaction undone.
HOLD_S = 5.0
_KEEP_EVERY_S = HOLD_S / 4
# Between two looks whether it has come to us, where no word of it came. One request of an organization looks, of each
# process, and each at a time of its own.
_FIRST_LOOK_S = 0.003
_LONGEST_LOOK_S = 0.5
# Requests of one organization that may wait in a process.
_MAX_WAITING = 200
_RETRY_AFTER_MS = 1_000
_DECIDE_AGAIN_S = 0.05
# So long after its deadline a transaction is done with everything, or hangs, and then its record is left to others.
_KEPT_AFTER_S = 10.0


class Baton:
    """The baton, in hand. Its record is freed, or handed over, in the end."""

    def __init__(self, directory: Directory, record: NewRecord, unanswered: "set[asyncio.Task[bool]]") -> None:
        self._directory = directory
        self._unanswered = unanswered
        self.id = record.id
        self.gid = record.gid
        self.is_freed = False
        # Whether it may be decided, or something may be prepared that nobody here ends any more.
        self.is_in_doubt = False

    async def decide(self, deadline: Deadline) -> bool:
        """Whether it is decided to commit. Asks until the directory answers; raises EngineError at the deadline."""
        self.is_in_doubt = True
        while True:
            try:
                self.is_in_doubt = await self._commit(deadline)
                return self.is_in_doubt
            except EngineError as error:
                if not deadline.left_s():
                    # The decision may be there or may yet come; the one that others make of it holds.
                    raise connection_lost(f"{self.id}: {error.internal_context}") from error
                await asyncio.sleep(min(_DECIDE_AGAIN_S, deadline.left_s()))

    async def _commit(self, deadline: Deadline) -> bool:
        # The directory may take it and not answer. To cancel the question would wait for that, too.
        asking = asyncio.create_task(spanning.commit(self._directory, self.id))
        await asyncio.wait([asking], timeout=deadline.left_s())
        if asking.done():
            return asking.result()
        self._unanswered.add(asking)
        asking.add_done_callback(self._hear)
        raise engine_away("the directory does not answer")

    def _hear(self, asking: "asyncio.Task[bool]") -> None:
        # Whatever it says, those who finish the transaction go by the record.
        self._unanswered.discard(asking)
        if not asking.cancelled():
            asking.exception()

    async def end_reading(self) -> None:
        """Gives it back after what has only read. Raises EngineError if it was not the only one meanwhile."""
        if not await spanning.end_reading(self._directory, self.id):
            raise taken_away()
        self.is_freed = True

    async def free(self) -> None:
        await spanning.free(self._directory, self.id)
        self.is_freed = True


class SpanningLocks:
    """The batons of every organization."""

    def __init__(self, directory: Directory, notifier: SpanningNotifier, observe: Observe) -> None:
        self._directory = directory
        self._notifier = notifier
        self._observe = observe
        self._queues: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: defaultdict[str, int] = defaultdict(int)
        # What was asked of the directory and is not awaited any more.
        self._unanswered: set[asyncio.Task[bool]] = set()

    @asynccontextmanager
    async def baton(
        self, id_: str, organization_id: str, gid: str, database_ids: Sequence[str], deadline: Deadline
    ) -> AsyncIterator[Baton]:
        """Waits for the baton and has it for the length of the block. Raises LimitError if it does not come in time."""
        record = NewRecord(id_, organization_id, gid, database_ids)
        async with self._queue(organization_id, deadline):
            baton = Baton(self._directory, record, self._unanswered)
            keeping = asyncio.create_task(self._keep(record.id, deadline.left_s() + _KEPT_AFTER_S))
            try:
                await self._wait(record, deadline)
                yield baton
            finally:
                keeping.cancel()
                self._notifier.forget(organization_id)
                if not baton.is_freed:
                    await self._leave(baton)

    @asynccontextmanager
    async def _queue(self, organization_id: str, deadline: Deadline) -> AsyncIterator[None]:
        if self._waiting[organization_id] >= _MAX_WAITING:
            raise _overloaded("Too many transactions of your organization wait to span databases.")
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
        state: State | None = await spanning.enter(self._directory, record, HOLD_S)
        look_s = _FIRST_LOOK_S
        while state is State.WAITING:
            if not deadline.left_s():
                raise _not_in_time()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(look_s * random.uniform(0.5, 1.0), deadline.left_s())):
                    await word.wait()
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
            word.clear()
            state = await spanning.advance(self._directory, record.id, HOLD_S)
        if state is None:
            raise taken_away()

    async def _keep(self, id_: str, for_s: float) -> None:
        until = Deadline(time.monotonic() + for_s)
        while until.left_s():
            await asyncio.sleep(_KEEP_EVERY_S)
            try:
                await spanning.keep(self._directory, id_, HOLD_S)
            except ServiceError as error:
                # If it stays so, others take the record, and whoever decides learns that.
                self._report("keeping", error)

    async def _leave(self, baton: Baton) -> None:
        try:
            await (spanning.postpone if baton.is_in_doubt else spanning.give_up)(self._directory, baton.id)
        except ServiceError as error:
            # The hold ends by itself, and what it stands for is finished then.
            self._report("leaving", error)

    def _report(self, what: str, error: ServiceError) -> None:
        self._observe(Failure(now(), "failure", "data_plane.batons", f"{what}: {error.internal_context}"))


def taken_away() -> EngineError:
    """The error for a transaction that was undone because its record was not renewed in time."""
    return engine_away("the record of a spanning transaction was taken over", outcome=Outcome.ROLLED_BACK)


def _not_in_time() -> LimitError:
    return _overloaded(
        "An organization's transactions over several databases run one after the other;"
        " the turn of this one did not come before its deadline."
    )


def _overloaded(reason: str) -> LimitError:
    return LimitError("overloaded", reason, retryable=True, retry_after_ms=_RETRY_AFTER_MS)
