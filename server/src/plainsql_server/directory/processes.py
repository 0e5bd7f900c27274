"""The list of running data plane processes: the table `data_processes`.

    membership = Membership(directory, "10.0.0.11:8500", observe, pools.share_with)
    await membership.run(leaving)          # until `leaving` is set

    live = await addresses(connection)     # where they can be reached
    number = await count(connection)       # also those without an address

A process registers itself when it is ready, renews its row every few seconds, and removes it when it begins to stop.
A process that died is not listed any more after `UNSEEN_S`. All times are the directory's.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.observation import FailureObserved, Observe, describe_for_operators
from plainsql_server.directory.connection import Directory, DirectoryConnection

# Two renewals may fail before a process is taken for dead.
RENEW_S = 5.0
UNSEEN_S = 15.0
# A directory that does not answer for this long has failed.
_RENEWAL_LIMIT_S = 5.0
# A process that stops does not wait longer for the directory. Its row expires by itself.
_LEAVE_LIMIT_S = 1.0

_IS_LIVE = f"seen_at > now() - interval '{UNSEEN_S} seconds'"


async def addresses(connection: DirectoryConnection) -> list[str]:
    """The addresses of the live processes, as host:port, in order."""
    cursor = await connection.execute(
        f"SELECT DISTINCT address FROM data_processes WHERE address IS NOT NULL AND {_IS_LIVE} ORDER BY address"
    )
    return [str(row["address"]) for row in await cursor.fetchall()]


async def count(connection: DirectoryConnection) -> int:
    """The number of live processes."""
    cursor = await connection.execute(f"SELECT count(*) AS number FROM data_processes WHERE {_IS_LIVE}")
    row = await cursor.fetchone()
    assert row is not None
    return int(row["number"])


class Membership:
    """This process in the list. `run` keeps it there; `leave` removes it."""

    def __init__(
        self, directory: Directory, address: str | None, observe: Observe, on_count: Callable[[int], None]
    ) -> None:
        """`on_count` is called at each renewal with the number of live processes, this one included."""
        self._directory = directory
        self._address = address
        self._observe = observe
        self._on_count = on_count
        self._id = new_id(Kind.PROCESS)
        self._is_listed = False
        self._is_failing = False

    async def run(self, leaving: asyncio.Event) -> None:
        """Stays in the list until `leaving` is set. A failure is reported once, however long it lasts."""
        while not leaving.is_set():
            try:
                async with asyncio.timeout(_RENEWAL_LIMIT_S):
                    await self._renew()
                self._is_failing = False
            except Exception as error:
                # Any error: the loop must survive, because nothing restarts it, and clients are served without it.
                if not self._is_failing:
                    self._report(error)
                self._is_failing = True
            try:
                async with asyncio.timeout(RENEW_S):
                    await leaving.wait()
            except TimeoutError:
                continue
        await self.leave()

    async def leave(self) -> None:
        """Removes this process from the list, if it is there. A failure is reported."""
        if not self._is_listed:
            return
        self._is_listed = False
        try:
            async with asyncio.timeout(_LEAVE_LIMIT_S), self._directory.connection() as connection:
                await connection.execute("SELECT leave_processes(%s)", (self._id,))
        except (ServiceError, TimeoutError) as error:
            self._report(error)

    async def _renew(self) -> None:
        async with self._directory.connection() as connection:
            # It also removes processes that died, and one that had this one's port.
            await connection.execute(
                "SELECT join_processes(%s, %s, %s, %s, %s)",
                (self._id, socket.gethostname(), os.getpid(), self._address, not self._is_listed),
            )
            self._is_listed = True
            self._on_count(await count(connection))

    def _report(self, error: Exception) -> None:
        self._observe(FailureObserved(now(), "failure", "list of processes", describe_for_operators(error)))
