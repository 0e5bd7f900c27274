"""The list of running processes, which divide the limits of their plane: the table `data_processes`.

    membership = Membership(directory, share, Listing("data", "10.0.0.11:8500"), Users(permits, pools), observe)
    await membership.join(notifier)        # holds a share, if the others gave up theirs in time
    await membership.run(leaving)          # renews it until cancelled
    await membership.leave()

    live = await addresses(connection)     # where data planes can be reached
    listed = await members(connection)     # all live processes, with their shares

Each row has the share that its process holds. The shares of a plane never add up to more than WHOLE, because one
function of the directory writes them, under a lock (migration 0018). Each of n processes should have 1/n, its target. A
process that has more stops using it, and then writes the smaller share. One that has less takes what is free, and uses
it once that is committed (`core/share.py`). So no process ever uses more than its row says.

A process renews its row every few seconds, and at once when the directory announces a change. If it can't, its share
lapses before its row expires. Processes on the same machine find out sooner that it died, by its pid. What a process
granted in the last minute stays in its row, also when it has left: the others leave it out of what they grant. Decision
0029 has the reasons.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from psycopg.types.json import Jsonb

from plainsql_server.core.clock import now
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.observation import FailureObserved, MembershipChanged, Observe, describe_for_operators
from plainsql_server.core.share import UNSEEN_S, WHOLE, Renewed, Share
from plainsql_server.core.tasks import end
from plainsql_server.directory.connection import Directory, DirectoryConnection

RENEW_S = 5.0
# While a process waits for its share or gives one up, after a failure, and while it grants permits from its share: when
# it dies, what it granted since the last renewal is forgotten.
RENEW_SOON_S = 1.0
# How long what a process granted counts when it has left: a window of the limiter, and what it counts beyond that.
REMEMBERED_S = 62.0
# A directory that does not answer for this long has failed.
_RENEWAL_LIMIT_S = 3.0
# A process that stops does not wait longer for the directory. Its row expires by itself.
_LEAVE_LIMIT_S = 1.0
# By then, the others have renewed their rows, even if they did not hear of this one.
_JOIN_LIMIT_S = RENEW_S + RENEW_SOON_S
# Each change makes every process renew its row. Several changes within this time do so once.
_TOGETHER_S = 0.05

PROCESSES_CHANGED = "plainsql_processes"
_IS_LIVE = f"left_at IS NULL AND seen_at > now() - interval '{UNSEEN_S} seconds'"
_RENEW = "SELECT * FROM renew_process(%s, %s, %s, %s, %s, %s, %s, %s, %s)"


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
    cursor = await connection.execute(
        f"SELECT id, plane, host, pid, address, share FROM data_processes WHERE {_IS_LIVE} ORDER BY started_at, id"
    )
    return [Member(**row) for row in await cursor.fetchall()]


async def addresses(connection: DirectoryConnection) -> list[str]:
    """The addresses of the live data plane processes, as host:port, in order."""
    return sorted({member.address for member in await members(connection) if member.address is not None})


class ProcessesNotifier:
    """Wakes this process up when others join, leave or give up shares. `channel.py` calls `announce`."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.is_waiting = True
        """Whether this process waits for what others give up."""

    def announce(self, change: str) -> None:
        if change == "number" or self.is_waiting:
            self.woken.set()


class PermitGranter(Protocol):
    """What grants permits from the share: `limits/permits.py`."""

    others_used: Mapping[str, int]

    @property
    def uses_share(self) -> bool: ...

    def used(self) -> dict[str, tuple[int, int]]: ...


class ShareHolder(Protocol):
    """What has connections from the share: `engine/pool/pools.py`."""

    def in_use(self) -> int: ...

    def take_share(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Users:
    """What uses the share of a process. The control plane has no pools."""

    permits: PermitGranter
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
        self._is_listed = False
        self._is_failing = False
        self._is_settled = False
        self._has_granted = False
        self._is_leaving = False
        self._processes = 0

    async def join(self, notifier: ProcessesNotifier) -> None:
        """Takes a share. If it is needed, waits some seconds until the others have given it up."""
        end_s = time.monotonic() + _JOIN_LIMIT_S
        await self._try_to_renew(notifier)
        while (
            self._users.permits.uses_share and not (self._is_settled or self._is_failing) and time.monotonic() < end_s
        ):
            await self._pause(notifier)
            await self._try_to_renew(notifier)

    async def run(self, notifier: ProcessesNotifier, leaving: asyncio.Event) -> None:
        """Keeps the share until cancelled. From `leaving` on, the process is listed without its address."""

        async def withdraw() -> None:
            await leaving.wait()
            self._is_leaving = True
            notifier.woken.set()

        withdrawing = asyncio.create_task(withdraw())
        try:
            while True:
                await self._pause(notifier)
                await self._try_to_renew(notifier)
        finally:
            await end(withdrawing)

    async def leave(self) -> None:
        """Gives up the share, if this process has one. A failure is reported."""
        if not self._is_listed:
            return
        self._is_listed = False
        try:
            async with asyncio.timeout(_LEAVE_LIMIT_S), self._directory.connection() as connection:
                await connection.execute("SELECT leave_process(%s, %s)", (self._id, Jsonb(self._users.permits.used())))
        except (ServiceError, TimeoutError) as error:
            self._report(error)

    @property
    def _is_busy(self) -> bool:
        return self._is_failing or not self._is_settled or self._has_granted

    async def _pause(self, notifier: ProcessesNotifier) -> None:
        try:
            async with asyncio.timeout(RENEW_SOON_S if self._is_busy else RENEW_S):
                await notifier.woken.wait()
        except TimeoutError:
            return
        if not self._is_leaving:
            await asyncio.sleep(_TOGETHER_S)
        notifier.woken.clear()

    async def _try_to_renew(self, notifier: ProcessesNotifier) -> None:
        """Renews the row. A failure is reported once, however long it lasts."""
        try:
            async with asyncio.timeout(_RENEWAL_LIMIT_S):
                await self._renew()
            self._is_failing = False
        except Exception as error:
            # Any error: the loop must survive, because nothing restarts it, and Redis may grant permits without it.
            if not self._is_failing:
                self._report(error)
            self._is_failing = True
        notifier.is_waiting = not self._is_settled
        if self._users.pools is not None:
            # Also after a failure, because the share may have lapsed.
            self._users.pools.take_share()

    async def _renew(self) -> None:
        async with self._directory.connection() as connection:
            dead = await self._dead(connection)
            renewed = await self._renewed(connection, dead)
            if self._has_more_than(renewed):
                # It does not use the rest any more, so others may have it. What is still in use follows later.
                renewed = await self._renewed(connection, [])
        self._is_settled = renewed.share == renewed.target
        self._note(renewed)

    async def _renewed(self, connection: DirectoryConnection, dead: list[str]) -> Renewed:
        asked_s, permits = time.monotonic(), self._users.permits
        used = permits.used()
        self._has_granted = bool(used)
        address = None if self._is_leaving else self._listing.address
        cursor = await connection.execute(
            _RENEW,
            (self._id, socket.gethostname(), os.getpid(), self._pid_space, self._listing.plane, address,
             max(self._share.held, self._in_use()), Jsonb(used), dead),
        )  # fmt: skip
        row = await cursor.fetchone()
        assert row is not None
        self._is_listed = True
        # Before the share is used, because it may be what others gave up.
        permits.others_used = row["others_used"] or {}
        renewed = Renewed(row["share"], row["target"], row["processes"])
        self._share.accept(renewed, asked_s)
        return renewed

    def _has_more_than(self, renewed: Renewed) -> bool:
        """Whether others can have some of what the row says."""
        if self._users.pools is not None:
            self._users.pools.take_share()
        return renewed.share > max(renewed.target, self._in_use())

    def _in_use(self) -> int:
        return 0 if self._users.pools is None else self._users.pools.in_use()

    async def _dead(self, connection: DirectoryConnection) -> list[str]:
        """The listed processes of this machine that do not exist any more."""
        cursor = await connection.execute(
            "SELECT id, pid FROM data_processes WHERE left_at IS NULL AND pid_space = %s AND id <> %s",
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
