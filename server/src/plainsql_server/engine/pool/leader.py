"""Which of a cell's servers leads, and connections to that one.

Owns the search for it. A cell of one host has nothing to search. In a cell of several (`deploy/cell-ha/`) one server
takes writes, and another one takes its place when it dies: a connection is asked of the server that led last, and when
that one gives none, all are asked, once for all who wait, again and again until one leads. Only then do those who
waited connect. A tenant who alone is refused makes nobody else wait. Refuses to read from a server that follows.
"""

import asyncio
import time
from collections.abc import Sequence

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.queries import ask
from plainsql_server.engine.connection.sqlstate import engine_away

# How long a request waits for a leader where its own deadline is later. A lock of 20 s ends first, and then a server is
# promoted; what takes longer than this is no fail-over, and whoever waits had better be told.
PATIENCE_S = 30.0
# How long one look at all servers takes at most, and asking the one that led last; and the pause before the next look.
_LOOK_S = 2.0
_PAUSE_S = 0.1
_LOOK_AGAIN_S = 1.0
# A server that was cut off may take itself for the leader for a moment. Where one answers, the others get this long to.
_OTHERS_S = 0.2
# The first eight digits of a log file's name are the timeline, which grows with each change of leaders.
_TIMELINE = b"select pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())"


class Leader:
    """The leader of one cell, as far as this process knows."""

    def __init__(self, probes: Sequence[bytes]) -> None:
        """`probes` are connection strings for looking, one for each host."""
        self._probes = probes
        # The host that leads, by its number; None while nobody knows. Only a look at all of them changes it.
        self.place: int | None = 0 if len(probes) == 1 else None
        self._search: asyncio.Task[None] | None = None
        self._why_not = ""
        # When the last look that is done began.
        self._looked_s = 0.0

    async def connect(self, ways: Sequence[bytes], connect_timeout_s: float, limit_s: float) -> Connection:
        """A connection to the leader; `ways` are connection strings, one for each host.

        Raises EngineError if it cannot be opened; for a cell of several hosts only when the limit or our patience is
        over, or when the server that leads refuses these ways and not ours.
        """
        if len(ways) == 1:
            return await Connection.open(ways[0], min(connect_timeout_s, limit_s))
        end_s = time.monotonic() + min(limit_s, PATIENCE_S)
        # The host that refused, and was found to lead all the same. It is asked again: it may just have been promoted.
        refused_by: int | None = None
        while True:
            place = self.place
            if place is None:
                place = await self._found(end_s)
            asked_s = time.monotonic()
            timeout_s = min(connect_timeout_s, _LOOK_S, max(0.0, end_s - asked_s))
            try:
                connection = await Connection.open(ways[place], timeout_s)
            except EngineError:
                failed_s = time.monotonic()
                # Who is slow is waited for; everybody may be connecting.
                is_refusal = failed_s - asked_s < timeout_s
                if (is_refusal and refused_by == place) or failed_s + _PAUSE_S >= end_s:
                    self.suspect()
                    raise
                await self._looked_at(end_s - _PAUSE_S)
                refused_by = place if is_refusal and self.place == place else None
                await asyncio.sleep(_PAUSE_S)
                continue
            connection.place = place
            return connection

    def suspect(self) -> None:
        """Says that something went wrong which customers can do to their own: has somebody look, now and then."""
        is_looking = self._search is not None and not self._search.done()
        if len(self._probes) > 1 and not is_looking and time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
            self._search = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        if self._search is not None:
            self._search.cancel()
            await asyncio.wait([self._search])

    async def _found(self, end_s: float) -> int:
        """Waits until it is known who leads. Raises EngineError when the time is over."""
        while self.place is None:
            if self._search is None or self._search.done():
                self._search = asyncio.get_running_loop().create_task(self._look_until_found())
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise engine_away(f"no server of the cell leads: {self._why_not}")
            await asyncio.wait([self._search], timeout=left_s)
        return self.place

    async def _looked_at(self, end_s: float) -> None:
        """Returns when somebody has looked from now on, or the time is over. Meanwhile, who led is taken to lead."""
        now_s = time.monotonic()
        while self._looked_s < now_s and (left_s := end_s - time.monotonic()) > 0:
            if self._search is None or self._search.done():
                self._search = asyncio.get_running_loop().create_task(self._look())
            await asyncio.wait([self._search], timeout=left_s)

    async def _look_until_found(self) -> None:
        # Ends by itself, since whoever waited may have given up.
        end_s = time.monotonic() + PATIENCE_S
        while self.place is None and time.monotonic() < end_s:
            await self._look()
            if self.place is None:
                await asyncio.sleep(_PAUSE_S)

    async def _look(self) -> None:
        began_s = time.monotonic()
        try:
            self.place = await leading(self._probes, _LOOK_S)
        except EngineError as error:
            self.place = None
            self._why_not = error.internal_context or ""
        finally:
            # Only now: who waits for a look waits for what it finds.
            self._looked_s = began_s


async def leading(ways: Sequence[bytes], timeout_s: float) -> int:
    """The number of the host that takes connections as a leader. Raises EngineError if none does in time.

    If there are two, it is the one with the later timeline.
    """
    attempts = [asyncio.ensure_future(Connection.open(way, timeout_s)) for way in ways]
    try:
        waiting = set(attempts)
        while waiting and not _successes(attempts):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=_OTHERS_S)
        found = _successes(attempts)
        if not found:
            raise _failure(attempts)
        return found[0][0] if len(found) == 1 else await _latest(found)
    finally:
        await _close(attempts)


def _successes(attempts: "Sequence[asyncio.Future[Connection]]") -> list[tuple[int, Connection]]:
    return [
        (place, attempt.result())
        for place, attempt in enumerate(attempts)
        if attempt.done() and not attempt.cancelled() and attempt.exception() is None
    ]


def _failure(attempts: "Sequence[asyncio.Future[Connection]]") -> BaseException:
    """What all of them failed with, as one error."""
    errors = [attempt.exception() for attempt in attempts]
    unexpected = next((error for error in errors if error is not None and not isinstance(error, EngineError)), None)
    if unexpected is not None:
        return unexpected
    return engine_away("; ".join(error.internal_context or "" for error in errors if isinstance(error, EngineError)))


async def _latest(found: list[tuple[int, Connection]]) -> int:
    timelines: list[tuple[str, int]] = []
    for place, connection in found:
        try:
            async with asyncio.timeout(_OTHERS_S):
                ((file,),) = await ask(connection, _TIMELINE, [])
        except (TimeoutError, EngineError, InternalError):
            # It stepped down meanwhile, or hangs: no leader.
            continue
        timelines.append(((file or b"").decode()[:8], place))
    if not timelines:
        raise engine_away("several servers led, and none of them answers")
    return max(timelines)[1]


async def _close(attempts: "Sequence[asyncio.Future[Connection]]") -> None:
    for attempt in attempts:
        attempt.cancel()
    await asyncio.wait(attempts)
    for _, connection in _successes(attempts):
        connection.close()
