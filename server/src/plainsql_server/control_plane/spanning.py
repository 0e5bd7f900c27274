"""Recovery of spanning transactions: finishes those that were left in doubt, as they were decided.

Every control process runs this loop. It takes records in the directory whose lease has run out. Taking a record aborts
it unless it was already decided to commit; then every participant is committed or rolled back accordingly. This is done
here, not in the data plane, because it needs the admin role: that role can connect even if customers use all other
connections of a cell, and needs no customer login. Each record is finished independently, so a cell that does not
answer delays only the transactions that involve it. A record whose lease is valid is never touched.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.clock import now
from plainsql_server.core.errors import EngineError, ServiceError
from plainsql_server.core.observation import FailureObserved, Observe, Reaped, describe_for_operators
from plainsql_server.core.tasks import end
from plainsql_server.directory import cells, spanning
from plainsql_server.directory.cells import OUT_OF_SERVICE, CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import Participation, Unfinished
from plainsql_server.engine.admin.reaping import CellWatch
from plainsql_server.engine.execution.spanning import GID_PREFIX, gid_of, transaction_of

_LOOK_EVERY_S = 1.0
# How many records are finished concurrently.
_AT_ONCE = 64
# How many participants are finished concurrently on one cell, with two connections each. A cell reserves ten for
# admins.
_OF_A_CELL = 3
# Longer than finishing takes if the cells answer. If one does not, the record is tried again after this time.
_CLAIM_S = 10.0
# How often a record is retried while one of its cells is unavailable.
_AGAIN_S = 1.0
_TIDY_EVERY_S = 60.0


class _Cell:
    """A cell, and whether it answered the last attempt."""

    def __init__(self) -> None:
        self.is_unreachable = False
        self._slots = asyncio.Semaphore(_OF_A_CELL)
        self._asking = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[bool]:
        """Whether to contact the cell. If it is unavailable, one task tries it and the others skip it."""
        if self._is_pointless():
            yield False
            return
        async with self._slots:
            if self._is_pointless():
                yield False
                return
            self._asking += 1
            try:
                yield True
            finally:
                self._asking -= 1

    def _is_pointless(self) -> bool:
        return self.is_unreachable and self._asking > 0


class Recovery:
    """Finds and finishes transactions in doubt."""

    def __init__(self, directory: Directory, observe: Observe) -> None:
        self._directory = directory
        self._observe = observe
        self._cells: defaultdict[str, _Cell] = defaultdict(_Cell)
        self._in_progress: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Runs forever. Cancelling it abandons the work in progress, which other processes then take over."""
        tidying = asyncio.create_task(self._keep_tidy())
        try:
            while True:
                try:
                    while await self._start_some():
                        # There may be more records than were taken.
                        await self._wait_for_slot()
                except Exception as error:
                    # Usually the directory is unavailable. The loop must survive, because nothing restarts it.
                    self._report(error)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await end(tidying)
            await self._give_up()

    async def finish_some(self) -> int:
        """Finishes some abandoned records. Returns how many were found."""
        found = await self._start_some()
        await asyncio.gather(*self._in_progress.values())
        return found

    async def _start_some(self) -> int:
        """Starts to finish as many abandoned records as the limit allows. Returns how many were found."""
        free = _AT_ONCE - len(self._in_progress)
        if not free:
            return 0
        found = await spanning.take_over(self._directory, free, _CLAIM_S)
        for each in found:
            # On a busy cell, a claim may expire while its task still waits, and the record is then found again.
            if each.id not in self._in_progress:
                self._in_progress[each.id] = asyncio.create_task(self._finish(each))
        return len(found)

    async def _wait_for_slot(self) -> None:
        """Waits until another record can be taken."""
        if len(self._in_progress) >= _AT_ONCE:
            await asyncio.wait(self._in_progress.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _give_up(self) -> None:
        await end(*self._in_progress.values())

    async def _finish(self, unfinished: Unfinished) -> None:
        try:
            done = await asyncio.gather(*(self._end(unfinished, each) for each in unfinished.participations))
            if all(done):
                await spanning.free(self._directory, unfinished.id)
            else:
                await spanning.postpone(self._directory, unfinished.id, _AGAIN_S)
        except Exception as error:
            # The claim expires, and a later pass continues.
            self._report(error)
        finally:
            del self._in_progress[unfinished.id]

    async def _end(self, unfinished: Unfinished, part: Participation) -> bool:
        """Finishes one participant. Returns whether nothing is left prepared there."""
        known = self._cells[part.cell_conninfo]
        async with known.slot() as may_ask:
            if not may_ask:
                return False
            try:
                await self._end_on_cell(unfinished, part)
            except EngineError as error:
                known.is_unreachable = True
                self._report(error)
                return False
            except ServiceError as error:
                self._report(error)
                return False
            known.is_unreachable = False
            return True

    async def _end_on_cell(self, unfinished: Unfinished, part: Participation) -> None:
        gid = gid_of(unfinished.gid, part.number)
        async with CellWatch.beside(part.cell_conninfo, part.admin_role) as cell:
            for database in await cell.where_prepared(gid):
                if await cell.end_prepared(gid, database, commit=unfinished.is_committed):
                    what = "in_doubt_committed" if unfinished.is_committed else "in_doubt_rolled_back"
                    self._observe(Reaped(now(), "reaped", part.cell_name, what, 1))

    async def _keep_tidy(self) -> None:
        """Deletes old records every minute. A task of its own, because a cell that does not answer delays it."""
        while True:
            try:
                await self._tidy()
            except Exception as error:
                self._report(error)
            await asyncio.sleep(_TIDY_EVERY_S)

    async def _tidy(self) -> None:
        known = await cells.list_(self._directory)
        prepared = await asyncio.gather(*map(_prepared_on, known))
        still_prepared = {transaction_of(gid)[0] for gids in prepared for gid in gids or ()}
        silent = [cell.id for cell, gids in zip(known, prepared, strict=True) if gids is None]
        # Busy organizations add hundreds of records per second.
        while await spanning.delete_old(self._directory, still_prepared, silent):
            continue

    def _report(self, error: Exception) -> None:
        self._observe(FailureObserved(now(), "failure", "recovery", describe_for_operators(error)))


async def _prepared_on(cell: CellRecord) -> list[str] | None:
    """The gids of the service's prepared transactions on a cell; None if it does not answer or is out of service."""
    if cell.state in OUT_OF_SERVICE:
        return None
    try:
        async with CellWatch.beside(cell.conninfo, cell.admin_role) as watch:
            return [gid for gid, _ in await watch.prepared(0) if gid.startswith(GID_PREFIX)]
    except ServiceError:
        # Those who need the cell report it.
        return None
