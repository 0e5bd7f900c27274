"""The worker of a cell: carries out the restores that customers ask for, one after the other, from its archive.

    await RestoreWorker(directory, cell, archive, folder, times, remark).run()

It claims them in the directory, does what `restore --at` does, and publishes the content in the transaction that ends
the restore. So if it dies, another worker, or the same one when it is started again, does it from the beginning; and if
two do the same, because one of them was thought to be dead, one of them publishes nothing.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from plainsql_server.control_plane import drafts
from plainsql_server.core.errors import ConflictError, EngineError, InternalError, LimitError, ServiceError, described
from plainsql_server.core.tasks import end
from plainsql_server.directory import databases as stored
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.directory.restoring import restores
from plainsql_server.directory.restoring.restores import Finished, RestoreProgress, RestoreRecord, RestoreState
from plainsql_server.directory.restoring.workers import note_worker
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import archive_reach
from plainsql_server.operations.point_in_time.restore_at import restore_at
from plainsql_server.operations.point_in_time.spare_folder import remove_abandoned
from plainsql_server.operations.restore import RestoreTimes, fill_branch, replace_database

# How long a claim outlives its worker.
ALIVE_S = 60.0
# How often the lease is renewed, and a restore that was canceled is noticed; each second if there is progress to note.
_KEEP_EVERY_S = 5.0
_NOTE_EVERY_S = 1.0
_LOOK_EVERY_S = 1.0
# The control plane asks for less than a minute.
_SEEN_EVERY_S = 5.0
_REACH_EVERY_S = 300.0
# A restore that ends its worker each time must not do so forever.
_ATTEMPTS_MOST = 5
# With this much of a step done, the time that the rest takes is no longer a guess.
_GUESS_AFTER_S = 1.0
# Workers are restarted at once, and what was replaced is not needed by anyone until it is restored.
_OPENED_FOR_S = 24 * 3600.0
_RESERVED_S = 36 * 3600.0
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

# What customers may read of a failure. All other messages may name files, cells or what others do.
_SHOWN = frozenset([
    "archive_too_short", "invalid_time", "not_in_archive", "restore_overtaken", "restore_timed_out",
    "restore_abandoned",
])  # fmt: skip

Say = Callable[[str], None]


class StoredProgress:
    """A `Progress` that is noted in the directory from time to time."""

    def __init__(self) -> None:
        self._label = "start"
        self._total: int | None = None
        self._done: int | None = None
        self._began_s = time.monotonic()

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:
        self._label, self._began_s = label, time.monotonic()
        self._total = total if in_bytes else None
        self._done = None if self._total is None else 0

    def at(self, done: int) -> None:
        if self._total is not None:
            self._done = min(done, self._total)

    def now(self) -> RestoreProgress:
        return RestoreProgress(self._label, self._done, self._total, self._seconds_left())

    def _seconds_left(self) -> int | None:
        elapsed_s = time.monotonic() - self._began_s
        if not self._total or not self._done or elapsed_s < _GUESS_AFTER_S:
            return None
        return round(elapsed_s * (self._total - self._done) / self._done)


@dataclass(frozen=True, slots=True)
class RestoreWorker:
    """Carries out restores from the archive of a cell."""

    directory: Directory
    cell: CellRecord
    archive: Archive
    folder: Path
    """Where spare clusters have their files."""
    times: RestoreTimes
    longest_s: float
    """How long a restore may take: what customers have stored decides that, and others wait."""
    free_ratio: float
    """How much of the folder's disk stays free."""
    say: Say

    async def run(self) -> None:
        """Works until a signal ends it. Raises RequestError if it can't read the archive when it starts."""
        since = (await archive_reach(self.archive)).first
        with _ending_this_task() as ending:
            try:
                async with _beside(self._be_seen(since)):
                    await self._open_replaced()
                    await self._work(ending)
            except asyncio.CancelledError:
                self.say("Ended.")

    async def _open_replaced(self) -> None:
        """Open what a worker has replaced that was killed before it could do so."""
        try:
            for database_id in await restores.replaced_lately(self.directory, self.cell.id, _OPENED_FOR_S):
                await drafts.reopen(self.directory, await self._database(database_id))
        except ServiceError as error:
            # The directory or the cell is unavailable. Restores matter more.
            self.say(_for_operators(error))

    async def _work(self, ending: asyncio.Event) -> None:
        # A driver may turn a cancellation into an error.
        while not ending.is_set():
            try:
                await asyncio.to_thread(remove_abandoned, self.folder)
                while not ending.is_set() and await self.work_once():
                    pass
            except ServiceError as error:
                # Usually the directory is unavailable.
                self.say(_for_operators(error))
            await asyncio.sleep(_LOOK_EVERY_S)

    async def work_once(self) -> bool:
        """Carry out one restore. Returns False if none is waiting."""
        claimed = await restores.claim(self.directory, self.cell.id, ALIVE_S, _RESERVED_S)
        if claimed is None:
            return False
        began_s = time.monotonic()
        self.say(f"{claimed.id}: {claimed.database_id} as it was at {claimed.point.isoformat()}")
        try:
            await self._carry_out(claimed)
            self.say(f"{claimed.id}: done in {time.monotonic() - began_s:.1f} s")
        except asyncio.CancelledError:
            # Otherwise, it is claimed again when the lease runs out.
            with suppress(ServiceError):
                await restores.release(self.directory, claimed)
            raise
        except ServiceError as error:
            self.say(f"{claimed.id}: {_for_operators(error)}")
            await restores.fail(self.directory, claimed, _for_customers(error))
        except Exception as error:
            self.say(f"{claimed.id}: {described(error)}")
            await restores.fail(self.directory, claimed, _failed())
        return True

    async def _carry_out(self, restore: RestoreRecord) -> None:
        """Restore, and renew the lease meanwhile. Raises ServiceError if it fails, or if the claim has ended."""
        progress = StoredProgress()
        try:
            async with asyncio.timeout(self.longest_s), asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(self._keep(restore, progress))
                try:
                    await self._restore(restore, progress)
                finally:
                    await end(keeping)
        except TimeoutError:
            raise LimitError(
                "restore_timed_out", f"The restore took longer than {self.longest_s / 60:.0f} minutes."
            ) from None
        except BaseExceptionGroup as group:
            # Raise the first failure itself, without the group around it.
            raise group.exceptions[0] from None

    async def _restore(self, restore: RestoreRecord, progress: StoredProgress) -> None:
        origin = await self._database(restore.database_id)
        target = await self._database(restore.target_id)
        if restore.attempts > 1 and not restore.is_branch:
            await drafts.reopen(self.directory, target)
        if restore.attempts > _ATTEMPTS_MOST:
            raise EngineError("restore_abandoned", f"The restore was begun {_ATTEMPTS_MOST} times, and never ended.")

        async def goal(file: BinaryIO, missing: int) -> DatabaseRecord:
            finished = Finished(restore, missing)
            if restore.is_branch:
                return await fill_branch(self.directory, target, file, progress, finished)
            return await replace_database(self.directory, target, file, progress, times=self.times, finished=finished)

        await restore_at(
            self.directory, origin, restore.point, self.archive, goal, folder=self.folder, free_ratio=self.free_ratio,
            progress=progress,
        )  # fmt: skip

    async def _database(self, database_id: str) -> DatabaseRecord:
        found = await stored.find_by_id(self.directory, database_id)
        if found is None:
            raise InternalError(f"there is no database {database_id}")
        return found

    async def _keep(self, restore: RestoreRecord, progress: StoredProgress) -> None:
        """Renew the lease. Raises ConflictError if the claim has ended."""
        noted: RestoreProgress | None = None
        noted_s = 0.0
        while True:
            now = progress.now()
            if now != noted or time.monotonic() - noted_s >= _KEEP_EVERY_S:
                # If the directory is unavailable for too long, another worker claims the restore.
                with suppress(EngineError):
                    if not await restores.keep(self.directory, restore, now, ALIVE_S):
                        return await self._check_done(restore)
                    noted, noted_s = now, time.monotonic()
            await asyncio.sleep(_NOTE_EVERY_S)

    async def _check_done(self, restore: RestoreRecord) -> None:
        """Raises ConflictError unless the claim has ended because the restore is done."""
        now = await restores.find(self.directory, restore.id)
        if now is None or (now.state, now.attempts) != (RestoreState.DONE, restore.attempts):
            raise ConflictError("restore_overtaken", "The restore was canceled, or has another worker.")

    async def _be_seen(self, since: datetime) -> None:
        looked_s = time.monotonic()
        while True:
            try:
                if time.monotonic() - looked_s >= _REACH_EVERY_S:
                    since, looked_s = (await archive_reach(self.archive)).first, time.monotonic()
                await note_worker(self.directory, self.cell.id, since)
            except ServiceError as error:
                # The directory is unavailable, or the archive is. In both cases, no restore should be asked for.
                self.say(_for_operators(error))
            except Exception as error:
                # The loop must survive, because nothing restarts it.
                self.say(described(error))
            await asyncio.sleep(_SEEN_EVERY_S)


@contextmanager
def _ending_this_task() -> Iterator[asyncio.Event]:
    """Cancels this task on a signal that would end the process, so that a restore can be left in order."""
    task, loop, ending = asyncio.current_task(), asyncio.get_running_loop(), asyncio.Event()
    assert task is not None

    def end_task() -> None:
        ending.set()
        task.cancel()

    for each in _ENDING_SIGNALS:
        loop.add_signal_handler(each, end_task)
    try:
        yield ending
    finally:
        for each in _ENDING_SIGNALS:
            loop.remove_signal_handler(each)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task during the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end(task)


def _for_operators(error: ServiceError) -> str:
    return " ".join(" ".join(part.split()) for part in (error.message, error.internal_context) if part)


def _for_customers(error: ServiceError) -> ServiceError:
    if error.code in _SHOWN:
        error.hint = None
        return error
    return _failed()


def _failed() -> ServiceError:
    return EngineError("restore_failed", "The restore failed. The operator can find the cause by its id.")
