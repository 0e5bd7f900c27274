"""Finds the primary of a cell and connects to it.

A cell with one host needs no search. In a cell with several (`deploy/cell-ha/`), one server is the primary, and a
standby is promoted if it fails. `connect` tries the last known primary first. If that fails, all hosts are probed,
repeatedly, until one is the primary. All waiting requests share one search, and connect when it has found the primary.
A tenant whose own logins are rejected does not make other tenants wait. Standbys are never read from.
"""

import asyncio
import time
from collections.abc import Sequence

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.core.tasks import end
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.queries import ask
from plainsql_server.engine.connection.sqlstate import engine_unavailable

# How long a request waits for a primary at most, even if its deadline is later. In a failover, the leader lock (20 s)
# expires first, and then a standby is promoted. An outage that lasts longer is no failover, and an error is better than
# waiting.
FAILOVER_WAIT_S = 30.0
# The limit for one probe of all hosts, and for one attempt at the last known primary; and the pause between probes.
_LOOK_S = 2.0
_PAUSE_S = 0.1
_LOOK_AGAIN_S = 1.0
# An isolated server may briefly believe that it is still the primary. After the first one answers, the others get this
# long to answer, too.
_OTHERS_S = 0.2
# The first eight digits of a WAL file name are the timeline, which increases with each promotion.
_TIMELINE = b"select pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())"


class Leader:
    """The primary of one cell, as far as this process knows."""

    def __init__(self, probes: Sequence[bytes]) -> None:
        """`probes` are the probe role's connection strings, one for each host."""
        self._probes = probes
        # The index of the primary's host, or None while unknown. Only a probe of all hosts changes it.
        self.place: int | None = 0 if len(probes) == 1 else None
        self._search: asyncio.Task[None] | None = None
        self._why_not = ""
        # When the last completed probe began.
        self._looked_s = 0.0

    async def connect(self, conninfos: Sequence[bytes], connect_timeout_s: float, limit_s: float) -> Connection:
        """Connects to the primary. `conninfos` are connection strings, one for each host.

        Raises EngineError if that fails. For a cell with several hosts, it is raised only after `limit_s` or
        FAILOVER_WAIT_S, or if the primary rejects these connection strings but accepts the probe role.
        """
        if len(conninfos) == 1:
            return await Connection.open(conninfos[0], min(connect_timeout_s, limit_s))
        end_s = time.monotonic() + min(limit_s, FAILOVER_WAIT_S)
        # A host that rejected the connection although it is the primary. It is tried once more, because it may just
        # have been promoted.
        refused_by: int | None = None
        while True:
            place = self.place
            if place is None:
                place = await self._found(end_s)
            asked_s = time.monotonic()
            timeout_s = min(connect_timeout_s, _LOOK_S, max(0.0, end_s - asked_s))
            try:
                connection = await Connection.open(conninfos[place], timeout_s)
            except EngineError:
                failed_s = time.monotonic()
                # A timeout is not a rejection: after a failover, all clients connect at once.
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

    def is_elsewhere(self, place: int) -> bool:
        """Whether another host is known to be the primary, so that what still runs on this one no longer matters."""
        return self.place is not None and self.place != place

    def suspect(self) -> None:
        """Starts a probe in the background, at most one per second.

        Called after a lost connection. That alone proves nothing, because tenants can terminate their own backends.
        """
        is_looking = self._search is not None and not self._search.done()
        if len(self._probes) > 1 and not is_looking and time.monotonic() - self._looked_s > _LOOK_AGAIN_S:
            self._search = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        if self._search is not None:
            await end(self._search)

    async def _found(self, end_s: float) -> int:
        """Waits until the primary is known and returns its index. Raises EngineError at `end_s`."""
        while self.place is None:
            if self._search is None or self._search.done():
                self._search = asyncio.get_running_loop().create_task(self._look_until_found())
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise engine_unavailable(f"the cell has no primary: {self._why_not}")
            await asyncio.wait([self._search], timeout=left_s)
        return self.place

    async def _looked_at(self, end_s: float) -> None:
        """Waits for a probe that begins after this call, or until `end_s`. `place` stays in use meanwhile."""
        now_s = time.monotonic()
        while self._looked_s < now_s and (left_s := end_s - time.monotonic()) > 0:
            if self._search is None or self._search.done():
                self._search = asyncio.get_running_loop().create_task(self._look())
            await asyncio.wait([self._search], timeout=left_s)

    async def _look_until_found(self) -> None:
        # Stops after FAILOVER_WAIT_S, because the requests that waited may have given up.
        end_s = time.monotonic() + FAILOVER_WAIT_S
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
            # Set last: tasks that wait for a probe wait for its result.
            self._looked_s = began_s


async def leading(conninfos: Sequence[bytes], timeout_s: float) -> int:
    """Returns the index of the host that accepts connections as primary. Raises EngineError if none does in time.

    If two hosts do, the one with the later timeline wins.
    """
    attempts = [asyncio.ensure_future(Connection.open(conninfo, timeout_s)) for conninfo in conninfos]
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
    """Combines the failures of all attempts into one error."""
    errors = [attempt.exception() for attempt in attempts]
    unexpected = next((error for error in errors if error is not None and not isinstance(error, EngineError)), None)
    if unexpected is not None:
        return unexpected
    return engine_unavailable(
        "; ".join(error.internal_context or "" for error in errors if isinstance(error, EngineError))
    )


async def _latest(found: list[tuple[int, Connection]]) -> int:
    timelines: list[tuple[str, int]] = []
    for place, connection in found:
        try:
            async with asyncio.timeout(_OTHERS_S):
                ((file,),) = await ask(connection, _TIMELINE, [])
        except (TimeoutError, EngineError, InternalError):
            # It was demoted meanwhile, or hangs: not the primary.
            continue
        timelines.append(((file or b"").decode()[:8], place))
    if not timelines:
        raise engine_unavailable("several servers claimed to be the primary, and none of them answers")
    return max(timelines)[1]


async def _close(attempts: "Sequence[asyncio.Future[Connection]]") -> None:
    await end(*attempts)
    for _, connection in _successes(attempts):
        connection.close()
