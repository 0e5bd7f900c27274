"""The list of running processes, which divide the limits of their plane: the table `data_processes`.

    membership = Membership(dsn, share, Listing("data", "10.0.0.11:8500"), observe, announced=announced, pools=pools)
    renewing = asyncio.create_task(membership.run(leaving))    # renews until cancelled
    await membership.joined.wait()         # has its share, or waits for it no longer
    await membership.leave()

    live = await addresses(connection)     # where data planes can be reached
    listed = await members(connection)     # all live processes, with their shares

Each row has the share that its process holds. One function of the directory (`renew_process`, migration 0018) writes
it, and never lets shares add up to more than WHOLE. Of n processes, each should have 1/n, its target. A process that
has more stops using it, and then writes the smaller share. One that has less takes what is free, and uses it once that
is committed (`core/share.py`). So no process ever uses more than its row says.

The directory announces a process that joins or leaves, so the others renew their rows at once. If a process can't renew
its row, its share lapses before its row expires. Processes on the same machine find out sooner that it died, by its
pid. Decision 0030 has the reasons.
"""

import asyncio
import os
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.errors import SerializationFailure

from plainsql_server.core.clock import now
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.observation import FailureObserved, MembershipChanged, Observe, describe_for_operators
from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed, Share
from plainsql_server.core.sockets import cut_if_silent
from plainsql_server.core.tasks import end
from plainsql_server.directory.connection import DirectoryConnection, as_service_error, connect_alone, open_alone

APPLICATION_NAME = "plainsql-membership"
# Announced when a process joins or leaves.
PROCESSES_CHANGED = "plainsql_processes"
RENEW_S = 2.0
# After a failure, and while a share passes from one process to another: then twice as long each time, up to RENEW_S.
RENEW_SOON_S = 0.1
# Not sooner than that after the last one, however many processes come and go.
_INTERVAL_S = 0.02
# How long a process that joins waits until the others have given up its share.
JOIN_LIMIT_S = 3.0
# A row is deleted when nothing counts any more that its process granted: it was last renewed by then, lapsed 12 s
# later, and a permit counts for 61.2 s.
FORGOTTEN_S = 77.0
# A directory that does not answer a statement for this long has failed.
_RENEWAL_LIMIT_S = 3.0
# The directory gives up a little sooner by itself. It does not notice before that a connection was cut.
_RENEWAL_TIMEOUT_MS = 2_500
# By then, each process that runs has renewed its row, even if an attempt failed.
RENEWED_WITHIN_S = RENEW_S + _RENEWAL_LIMIT_S
# A process that stops does not wait longer for the directory. Its row expires by itself.
_LEAVE_LIMIT_S = 1.0
_LEAVE_TIMEOUT_MS = 900

_IS_LIVE = f"seen_at > now() - interval '{UNSEEN_S} seconds'"
_RENEW = f"SELECT * FROM renew_process({', '.join(['%s'] * 9)})"
_LISTED = f"SELECT id, plane, host, pid, address, share FROM data_processes WHERE {_IS_LIVE} ORDER BY started_at, id"


@dataclass(frozen=True, slots=True)
class Member:
    """A live process."""

    id: str
    plane: str
    host: str
    pid: int
    address: str | None
    share: int


async def members(connection: DirectoryConnection) -> list[Member]:
    """The live processes, the oldest first."""
    cursor = await connection.execute(_LISTED)
    return [Member(**row) for row in await cursor.fetchall()]


async def addresses(connection: DirectoryConnection) -> list[str]:
    """The addresses of the live data plane processes, as host:port, in order."""
    return sorted({member.address for member in await members(connection) if member.address is not None})


class ShareHolder(Protocol):
    """What has connections from the share: `engine/pool/pools.py`."""

    def in_use(self) -> int: ...

    def take_share(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """How a process is listed: by its plane, and the address of its own port."""

    plane: str
    address: str | None = None


class Membership:
    """This process in the list. `run` keeps it there; `leave` removes it."""

    def __init__(
        self, dsn: str, share: Share, listing: Listing, observe: Observe, *, announced: asyncio.Event,
        pools: ShareHolder | None = None,
    ) -> None:  # fmt: skip
        """`announced` is set when a process joins or leaves. The control plane has no pools."""
        self._dsn = dsn
        self._share = share
        self._listing = listing
        self._announced = announced
        self._observe = observe
        self._pools = pools
        self._id = new_id(Kind.PROCESS)
        # Rows of this process that it doesn't renew any more.
        self._former: list[str] = []
        self._pid_space = _pid_space()
        self._number = 0
        self._soon_s = RENEW_SOON_S
        self._is_failing = False
        # How long it waits after a failure.
        self._failed_s = RENEW_SOON_S
        self._is_leaving = False
        self._processes = 0
        self._lapse: asyncio.TimerHandle | None = None
        self.joined = asyncio.Event()
        """Set when this process has its share, or waits for it no longer."""

    async def run(self, leaving: asyncio.Event) -> None:
        """Renews the row until cancelled. From `leaving` on, the process is listed without its address."""

        async def withdraw() -> None:
            await leaving.wait()
            self._is_leaving = True
            self._announced.set()

        withdrawing = asyncio.create_task(withdraw())
        waited = asyncio.get_running_loop().call_later(JOIN_LIMIT_S, self.joined.set)
        try:
            while True:
                await self._renew_while_connected()
                # At random, so the processes of a fleet don't come back all at once.
                await asyncio.sleep(self._failed_s * random.uniform(0.5, 1.0))
                self._failed_s = min(2 * self._failed_s, RENEW_S)
        finally:
            waited.cancel()
            await end(withdrawing)

    async def leave(self) -> None:
        """Gives up the share and the address. Nobody may use them any more."""
        self._share.lapse()
        if self._lapse is not None:
            self._lapse.cancel()
        if self._number == 0:
            return
        try:
            async with asyncio.timeout(_LEAVE_LIMIT_S):
                connection = await connect_alone(self._dsn, APPLICATION_NAME)
            try:
                with cut_if_silent(connection.fileno(), _LEAVE_LIMIT_S):
                    await connection.execute(f"SET statement_timeout = {_LEAVE_TIMEOUT_MS}")
                    await connection.execute("SELECT leave_process(%s, %s)", (self._id, self._pid_space))
            finally:
                await connection.close()
        except (psycopg.Error, OSError, TimeoutError) as error:
            self._report(error)

    async def _renew_while_connected(self) -> None:
        """Renews the row until that fails. A failure is reported once, however long it lasts."""
        try:
            async with open_alone(self._dsn, APPLICATION_NAME, _RENEWAL_TIMEOUT_MS) as connection:
                while True:
                    await self._pause(await self._renew_all(connection))
        except Exception as error:
            # Any error: the loop must survive, because nothing restarts it, and clients are served without it.
            if not self._is_failing:
                self._report(error)
            self._is_failing = True
            self.joined.set()

    async def _pause(self, for_s: float) -> None:
        """Waits until the next renewal is due, or a process joins or leaves."""
        await asyncio.sleep(_INTERVAL_S)
        try:
            async with asyncio.timeout(for_s - _INTERVAL_S):
                await self._announced.wait()
        except TimeoutError:
            return
        self._soon_s = RENEW_SOON_S

    async def _renew_all(self, connection: DirectoryConnection) -> float:
        """Renews the row, twice if others may have some of its share. Returns when to do it again."""
        self._announced.clear()
        with cut_if_silent(connection.fileno(), _RENEWAL_LIMIT_S):
            renewed = await self._renew(connection, await self._dead(connection))
            if renewed.share > max(renewed.target, self._in_use()):
                # It does not use the rest any more, so others may have it. What is still in use follows later.
                renewed = await self._renew(connection, [])
        self._is_failing, self._failed_s = False, RENEW_SOON_S
        self._note(renewed)
        if renewed.share == renewed.target:
            self.joined.set()
            self._soon_s = RENEW_SOON_S
            return RENEW_S
        soon_s, self._soon_s = self._soon_s, min(2 * self._soon_s, RENEW_S)
        return soon_s

    async def _renew(self, connection: DirectoryConnection, dead: list[str]) -> Renewed:
        # Before the question: the row can't be older than that.
        asked_s = time.monotonic()
        self._number += 1
        try:
            cursor = await connection.execute(_RENEW, self._arguments(dead))
        except SerializationFailure:
            self._begin_anew()
            raise
        row = await cursor.fetchone()
        assert row is not None
        self._former = []
        renewed = Renewed(**row)
        self._share.accept(renewed, asked_s)
        self._watch_lapse()
        # Also if it holds as much as before: it may have lapsed while this was asked.
        self._take_share()
        return renewed

    def _begin_anew(self) -> None:
        """Gives up a row that something else has renewed or removed, and what it had."""
        self._share.lapse()
        self._take_share()
        self._former.append(self._id)
        self._id, self._number = new_id(Kind.PROCESS), 0

    def _watch_lapse(self) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
        self._lapse = asyncio.get_running_loop().call_later(max(0.0, self._share.left_s) + 0.001, self._take_share)

    def _take_share(self) -> None:
        if self._pools is not None:
            self._pools.take_share()

    def _arguments(self, dead: list[str]) -> tuple[Any, ...]:
        address = None if self._is_leaving else self._listing.address
        return (
            self._id, socket.gethostname(), os.getpid(), self._pid_space, self._listing.plane, address, self._number,
            min(WHOLE, max(self._share.held, self._in_use())), [*dead, *self._former],
        )  # fmt: skip

    def _in_use(self) -> int:
        return 0 if self._pools is None else self._pools.in_use()

    async def _dead(self, connection: DirectoryConnection) -> list[str]:
        """The listed processes of this machine that do not exist any more."""
        cursor = await connection.execute(
            f"SELECT id, pid FROM data_processes WHERE pid_space = %s AND id <> %s AND {_IS_LIVE}",
            (self._pid_space, self._id),
        )
        return [row["id"] for row in await cursor.fetchall() if not _exists(row["pid"])]

    def _note(self, renewed: Renewed) -> None:
        if renewed.processes != self._processes:
            self._processes = renewed.processes
            part = round(renewed.target / WHOLE, 4)
            self._observe(MembershipChanged(now(), "membership", self._listing.plane, renewed.processes, part))

    def _report(self, error: Exception) -> None:
        if isinstance(error, psycopg.Error):
            error = as_service_error(error)
        self._observe(FailureObserved(now(), "failure", "list of processes", describe_for_operators(error)))


def _pid_space() -> str | None:
    """What distinguishes this machine, and the container in it, from those where a pid is another process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
