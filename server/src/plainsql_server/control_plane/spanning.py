"""Recovery: transactions that span databases and were left in doubt are finished as they were decided.

Owns the loop that every control process runs. It goes by the records in the directory: one that its holder holds no
longer is taken, which aborts it unless it was decided to commit, and then every participant is made to do that. It
is here and not in the data plane, because it takes the admin role: that gets in when customers have taken every other
connection of a cell, and needs no login of a customer's. Each record is finished by itself, so that a cell which does
not answer holds up nobody but those who need it. Refuses to decide for anybody who is alive.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.clock import now
from plainsql_server.core.errors import EngineError, ServiceError
from plainsql_server.core.observation import Failure, Observe, Reaped, told_to_operators
from plainsql_server.directory import spanning
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import Participation, Unfinished
from plainsql_server.engine.admin.reaping import CellWatch
from plainsql_server.engine.execution.spanning import gid_of

_LOOK_EVERY_S = 1.0
# Records that are being finished at once.
_AT_ONCE = 64
# Parts of them that are ended at once on one cell, by two connections each. It keeps ten for admins.
_OF_A_CELL = 3
# Longer than finishing takes where the cells answer; where one does not, another look comes after this.
_CLAIM_S = 10.0
# A record of a cell that is away is looked at again so often.
_AGAIN_S = 1.0
_TIDY_EVERY_S = 60.0


class _Cell:
    """A cell, and whether it answered when it was last asked."""

    def __init__(self) -> None:
        self.is_away = False
        self._places = asyncio.Semaphore(_OF_A_CELL)
        self._asking = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Whether the cell may be asked. Of one that is away somebody asks, and nobody waits for that one's answer."""
        if self._is_in_vain():
            yield False
            return
        async with self._places:
            if self._is_in_vain():
                yield False
                return
            self._asking += 1
            try:
                yield True
            finally:
                self._asking -= 1

    def _is_in_vain(self) -> bool:
        return self.is_away and self._asking > 0


class Recovery:
    """Looks for what is in doubt, again and again."""

    def __init__(self, directory: Directory, observe: Observe) -> None:
        self._directory = directory
        self._observe = observe
        self._cells: defaultdict[str, _Cell] = defaultdict(_Cell)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._tidy_at_s = 0.0

    async def run(self) -> None:
        """Works for ever; cancelling it gives up what is under way, which others take then."""
        try:
            while True:
                try:
                    while await self._start_some():
                        # There may be more than were taken.
                        await self._room()
                    await self._tidy()
                except Exception as error:
                    # The directory is away, mostly. A loop that died would not come back.
                    self._report(error)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await self._give_up()

    async def finish_some(self) -> int:
        """Finishes some of what was left; how many were found."""
        found = await self._start_some()
        await asyncio.gather(*self._under_way.values())
        return found

    async def _start_some(self) -> int:
        """Begins to finish some of what was left, as much as there is room for; how many were found."""
        room = _AT_ONCE - len(self._under_way)
        if not room:
            return 0
        found = await spanning.take_over(self._directory, room, _CLAIM_S)
        for each in found:
            # A claim may end before its turn on a busy cell has come.
            if each.id not in self._under_way:
                self._under_way[each.id] = asyncio.create_task(self._finish(each))
        return len(found)

    async def _room(self) -> None:
        """Waits until another record may be taken."""
        if len(self._under_way) >= _AT_ONCE:
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _give_up(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, unfinished: Unfinished) -> None:
        try:
            done = await asyncio.gather(*(self._end(unfinished, each) for each in unfinished.participations))
            if all(done):
                await spanning.free(self._directory, unfinished.id)
            else:
                await spanning.postpone(self._directory, unfinished.id, _AGAIN_S)
        except Exception as error:
            # The claim ends by itself, and another look goes on here.
            self._report(error)
        finally:
            del self._under_way[unfinished.id]

    async def _end(self, unfinished: Unfinished, part: Participation) -> bool:
        """Whether nothing of it is prepared on a participant any more."""
        known = self._cells[part.cell_conninfo]
        async with known.turn() as may_ask:
            if not may_ask:
                return False
            try:
                await self._end_on_cell(unfinished, part)
            except EngineError as error:
                known.is_away = True
                self._report(error)
                return False
            except ServiceError as error:
                self._report(error)
                return False
            known.is_away = False
            return True

    async def _end_on_cell(self, unfinished: Unfinished, part: Participation) -> None:
        gid = gid_of(unfinished.gid, part.number)
        async with CellWatch.beside(part.cell_conninfo, part.admin_role) as cell:
            for database in await cell.where_prepared(gid):
                if await cell.end_prepared(gid, database, commit=unfinished.is_committed):
                    what = "in_doubt_committed" if unfinished.is_committed else "in_doubt_rolled_back"
                    self._observe(Reaped(now(), "reaped", part.cell_name, what, 1))

    async def _tidy(self) -> None:
        # With every look while there is more: busy organizations add hundreds in a second.
        if time.monotonic() >= self._tidy_at_s and not await spanning.delete_old(self._directory):
            self._tidy_at_s = time.monotonic() + _TIDY_EVERY_S

    def _report(self, error: Exception) -> None:
        self._observe(Failure(now(), "failure", "recovery", told_to_operators(error)))
