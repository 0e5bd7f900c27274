"""The list of running processes, which divide the limits of their plane: the table `data_processes`.

    membership = Membership(directory, share, Listing("data", "10.0.0.11:8500"), Users(leases, pools), observe)
    await membership.join()                # the first renewal
    await membership.run(leaving)          # renews until cancelled
    await membership.leave()

    live = await addresses(connection)     # where data planes can be reached
    listed = await members(connection)     # all live processes, with their shares

Each row has the share that its process holds, and the leases of permits belong to it. One function of the directory
(`renew_process`, migration 0018) writes both, in one statement for each renewal. It never lets shares add up to more
than WHOLE, or leases to more than a limit. Of n processes, each should have 1/n, its target. A process that has more
stops using it, and then writes the smaller share. One that has less takes what is free, and uses it once that is
committed (`core/share.py`). So no process ever uses more than its row says.

If a process can't renew its row, its share lapses before its row expires. Processes on the same machine find out sooner
that it died, by its pid. Decision 0030 has the reasons.
"""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.observation import FailureObserved, MembershipChanged, Observe, describe_for_operators
from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed, Share
from plainsql_server.core.tasks import end
from plainsql_server.directory.connection import Directory, DirectoryConnection

RENEW_S = 2.0
# After a failure, and while a share passes from one process to another.
RENEW_SOON_S = 0.5
# A row is deleted, with its leases, when nothing that its process granted counts any more: it was last renewed by then,
# lapsed 12 s later, and a permit counts for 61.2 s.
FORGOTTEN_S = 77.0
# A directory that does not answer for this long has failed.
_RENEWAL_LIMIT_S = 3.0
# By then, each process that runs has renewed its row, even if an attempt failed.
RENEWED_WITHIN_S = RENEW_S + _RENEWAL_LIMIT_S
# A process that stops does not wait longer for the directory. Its row expires by itself.
_LEAVE_LIMIT_S = 1.0

_IS_LIVE = f"seen_at > now() - interval '{UNSEEN_S} seconds'"
_RENEW = f"SELECT * FROM renew_process({', '.join(['%s'] * 14)})"
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


class PermitAsk(Protocol):
    """What is asked for an organization: `limits/ledger.py`."""

    @property
    def organization_id(self) -> str: ...
    @property
    def limit(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def needed(self) -> int: ...
    @property
    def ahead(self) -> bool: ...


class LeaseHolder(Protocol):
    """What grants permits that the directory leases: `limits/leases.py`."""

    there_is_work: asyncio.Event

    def asks(self) -> Sequence[PermitAsk]: ...

    def hear(self, answers: Sequence[tuple[int, int]], *, is_listed_anew: bool) -> None: ...

    def fail(self) -> None: ...


class ShareHolder(Protocol):
    """What has connections from the share: `engine/pool/pools.py`."""

    def in_use(self) -> int: ...

    def take_share(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Users:
    """What uses the row of a process. With Redis, the directory leases no permits. The control plane has no pools."""

    leases: LeaseHolder | None = None
    pools: ShareHolder | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """How a process is listed: by its plane, and the address of its own port."""

    plane: str
    address: str | None = None


class Membership:
    """This process in the list. `run` keeps it there; `leave` removes it."""

    def __init__(self, directory: Directory, share: Share, listing: Listing, users: Users, observe: Observe) -> None:
        self._directory = directory
        self._share = share
        self._listing = listing
        self._users = users
        self._observe = observe
        self._id = new_id(Kind.PROCESS)
        self._pid_space = _pid_space()
        self._number = 0
        self._since: datetime | None = None
        self._due_s = 0.0
        self._is_failing = False
        self._is_leaving = False
        self._processes = 0
        self._wake = asyncio.Event() if users.leases is None else users.leases.there_is_work

    async def join(self) -> None:
        """Lists this process, and takes what share is free."""
        await self._try_to_renew()

    async def run(self, leaving: asyncio.Event) -> None:
        """Renews the row until cancelled. From `leaving` on, the process is listed without its address."""

        async def withdraw() -> None:
            await leaving.wait()
            self._is_leaving = True
            self._wake.set()

        withdrawing = asyncio.create_task(withdraw())
        try:
            while True:
                await self._pause()
                await self._try_to_renew()
        finally:
            await end(withdrawing)

    async def leave(self) -> None:
        """Gives up the share. What was leased counts until it can't have been granted within a window."""
        self._share.lapse()
        if self._number == 0:
            return
        try:
            async with asyncio.timeout(_LEAVE_LIMIT_S), self._directory.connection() as connection:
                await connection.execute("SELECT leave_process(%s)", (self._id,))
        except (ServiceError, TimeoutError) as error:
            self._report(error)

    async def _pause(self) -> None:
        if self._is_failing:
            # Not sooner, however many requests wait.
            await asyncio.sleep(RENEW_SOON_S)
            return
        try:
            async with asyncio.timeout(max(0.0, self._due_s - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _try_to_renew(self) -> None:
        """Renews the row. A failure is reported once, however long it lasts."""
        try:
            async with asyncio.timeout(_RENEWAL_LIMIT_S), self._directory.connection() as connection:
                if time.monotonic() < self._due_s and not self._is_leaving:
                    # Requests wait for permits.
                    await self._renew(connection, [])
                else:
                    await self._renew_all(connection)
            self._is_failing = False
        except Exception as error:
            # Any error: the loop must survive, because nothing restarts it, and Redis may grant permits without it.
            if not self._is_failing:
                self._report(error)
            self._is_failing = True
            if self._users.leases is not None:
                self._users.leases.fail()
            # Because the share may have lapsed.
            self._take_share()

    async def _renew_all(self, connection: DirectoryConnection) -> None:
        renewed = await self._renew(connection, await self._dead(connection))
        if renewed.share > max(renewed.target, self._in_use()):
            # It does not use the rest any more, so others may have it. What is still in use follows later.
            renewed = await self._renew(connection, [])
        self._due_s = time.monotonic() + (RENEW_S if renewed.share == renewed.target else RENEW_SOON_S)
        self._note(renewed)

    def _take_share(self) -> None:
        if self._users.pools is not None:
            self._users.pools.take_share()

    async def _renew(self, connection: DirectoryConnection, dead: list[str]) -> Renewed:
        leases = self._users.leases
        asks = [] if leases is None else leases.asks()
        # Before the question: the row can't be older than that.
        asked_s, held = time.monotonic(), self._share.held
        self._number += 1
        cursor = await connection.execute(_RENEW, self._arguments(dead, asks))
        row = await cursor.fetchone()
        assert row is not None
        renewed = Renewed(row["share"], row["target"], row["processes"])
        self._share.accept(renewed, asked_s)
        if self._share.held != held:
            self._take_share()
        # If it has another age, it was deleted in between, with its leases.
        is_listed_anew, self._since = row["started_at"] != self._since, row["started_at"]
        if leases is not None:
            leases.hear(list(zip(row["granted"], row["remaining"], strict=True)), is_listed_anew=is_listed_anew)
        return renewed

    def _arguments(self, dead: list[str], asks: Sequence[PermitAsk]) -> tuple[Any, ...]:
        address = None if self._is_leaving else self._listing.address
        return (
            self._id, socket.gethostname(), os.getpid(), self._pid_space, self._listing.plane, address, self._number,
            max(self._share.held, self._in_use()), dead,
            [ask.organization_id for ask in asks], [ask.limit for ask in asks], [ask.kept for ask in asks],
            [ask.needed for ask in asks], [ask.ahead for ask in asks],
        )  # fmt: skip

    def _in_use(self) -> int:
        return 0 if self._users.pools is None else self._users.pools.in_use()

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
