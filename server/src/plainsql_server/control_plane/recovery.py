"""Recovery: transactions that span databases and were left in doubt are finished as they were decided.

Owns the loop that every control process runs. It goes by the records in the directory: one that its holder holds no
longer is taken, which aborts it unless it was decided to commit, and then every participant is made to do that. It
is here and not in the data plane, because it takes the admin role: that gets in when customers have taken every other
connection of a cell, and needs no login of a customer's. Refuses to decide for anybody who is alive.
"""

import asyncio
import time

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.observation import Failure, Observe, Reaped, told_to_operators
from plainsql_server.directory import spanning
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.spanning import Participation, Unfinished
from plainsql_server.engine.reaping import CellWatch
from plainsql_server.engine.two_phase import gid_of

_LOOK_EVERY_S = 1.0
_AT_ONCE = 16
# Longer than finishing takes where the cells answer; where one does not, another look comes after this.
_CLAIM_S = 10.0
# A cell that is away is asked again so often.
_AGAIN_S = 1.0
_TIDY_EVERY_S = 60.0


class Recovery:
    """Looks for what is in doubt, again and again."""

    def __init__(self, directory: Directory, observe: Observe) -> None:
        self._directory = directory
        self._observe = observe
        self._tidy_at_s = 0.0

    async def run(self) -> None:
        """Works for ever."""
        while True:
            try:
                while await self.finish_some() == _AT_ONCE:
                    pass
                await self._tidy()
            except Exception as error:
                # The directory is away, mostly. A loop that died would not come back.
                self._report(error)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def finish_some(self) -> int:
        """Finishes some of what was left; how many were found."""
        found = await spanning.take_over(self._directory, _AT_ONCE, _CLAIM_S)
        await asyncio.gather(*(self._finish(each) for each in found))
        return len(found)

    async def _finish(self, unfinished: Unfinished) -> None:
        done = await asyncio.gather(*(self._end(unfinished, each) for each in unfinished.participations))
        try:
            if all(done):
                await spanning.free(self._directory, unfinished.id)
            else:
                await spanning.postpone(self._directory, unfinished.id, _AGAIN_S)
        except ServiceError as error:
            # The claim ends by itself, and the next look goes on here.
            self._report(error)

    async def _end(self, unfinished: Unfinished, part: Participation) -> bool:
        """Whether nothing of it is prepared on a participant any more."""
        gid = gid_of(unfinished.gid, part.number)
        try:
            async with CellWatch.beside(part.cell_conninfo, part.admin_role) as cell:
                for database in await cell.where_prepared(gid):
                    if await cell.end_prepared(gid, database, commit=unfinished.is_committed):
                        what = "in_doubt_committed" if unfinished.is_committed else "in_doubt_rolled_back"
                        self._observe(Reaped(now(), "reaped", part.cell_name, what, 1))
        except ServiceError as error:
            self._report(error)
            return False
        return True

    async def _tidy(self) -> None:
        if time.monotonic() >= self._tidy_at_s:
            await spanning.delete_old(self._directory)
            self._tidy_at_s = time.monotonic() + _TIDY_EVERY_S

    def _report(self, error: Exception) -> None:
        self._observe(Failure(now(), "failure", "recovery", told_to_operators(error)))
