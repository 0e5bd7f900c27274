"""The finisher: completes creations and moves that a crash interrupted, and deletions that are due. Also deletes
branches that have expired.

Every control process runs this loop. Each claims unclaimed work for a limited time, and a lock on the cell keeps two
processes from working on one database. The directory records what is unfinished; `control_plane/databases.py` and
`control_plane/moves.py` carry out the steps.
"""

import asyncio
import time

from plainsql_server.control_plane import branches, databases, moves
from plainsql_server.control_plane.databases import CLAIM_S
from plainsql_server.control_plane.restoring import restores
from plainsql_server.core.clock import now
from plainsql_server.core.observation import FailureObserved, Observe, describe_for_operators
from plainsql_server.directory import audit, sessions
from plainsql_server.directory import databases as stored
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.moves import MoveRecord

_LOOK_EVERY_S = 2.0
_AT_ONCE = 4
_AUDIT_REMOVED_AT_ONCE = 10_000
_TIDY_EVERY_S = 600.0


class Finisher:
    """Looks for unfinished work every 2 seconds, and at once when `there_is_work` is called."""

    def __init__(self, directory: Directory, observe: Observe) -> None:
        self._directory = directory
        self._observe = observe
        self._there_is_work = asyncio.Event()
        self._tidy_at_s = 0.0

    def there_is_work(self) -> None:
        """Makes it look for work at once."""
        self._there_is_work.set()

    async def run(self) -> None:
        """Runs forever."""
        while True:
            self._there_is_work.clear()
            try:
                while await self.finish_some():
                    pass
                await self._tidy()
            except Exception as error:
                # Report any error and try again later. The loop must survive, because nothing restarts it.
                self._report(error)
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._there_is_work.wait()
            except TimeoutError:
                continue

    async def finish_some(self) -> int:
        """Works on some unfinished items. Returns how many; 0 means that nothing is unfinished."""
        await branches.expire(self._directory)
        abandoned = await moves.abandoned(self._directory)
        await asyncio.gather(*(self._undo(move) for move in abandoned))
        unfinished = await stored.claim_unfinished(self._directory, _AT_ONCE, CLAIM_S)
        await asyncio.gather(*(self._finish(database) for database in unfinished))
        return len(abandoned) + len(unfinished)

    async def _undo(self, move: MoveRecord) -> None:
        try:
            await moves.undo(self._directory, move)
        except Exception as error:
            # Most likely its cell is unavailable. It is tried again when the claim expires.
            self._report(error)

    async def _tidy(self) -> None:
        if time.monotonic() >= self._tidy_at_s:
            await sessions.delete_expired_before(self._directory, now() - sessions.KEPT)
            await audit.delete_old(self._directory, _AUDIT_REMOVED_AT_ONCE)
            await restores.tidy(self._directory)
            self._tidy_at_s = time.monotonic() + _TIDY_EVERY_S

    async def _finish(self, database: DatabaseRecord) -> None:
        try:
            if database.state is DatabaseState.CREATING:
                await databases.finish(self._directory, database)
            else:
                await databases.drop(self._directory, database)
        except Exception as error:
            # A failed creation is marked as failed. A deletion is tried again when the claim expires.
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._observe(FailureObserved(now(), "failure", "finishing", describe_for_operators(error)))
