"""Finds the database of a request, and the role to connect as.

    place = await databases.find(principal, name, deadline)

The database is the one that the key is bound to, the one that the request names, or the organization's default. A
database of another organization gets the same error as one that does not exist.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import RETRY_AFTER_MS, AccessError, EngineError, LimitError
from plainsql_server.core.names import DATABASE_NAME
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.data_plane.move_hold import DatabaseHeld, cell_is_down, database_held
from plainsql_server.directory import databases
from plainsql_server.directory.cache import LONGEST_S, Cache
from plainsql_server.directory.cells import OUT_OF_SERVICE
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.sealing.keyring import Keyring, StoredSecret
from plainsql_server.engine.pool.address import Address

# How long a request without a deadline waits for a database that is moving to another cell. A move usually holds
# it for less than this.
_HELD_MS = 2_000
_LOOK_AGAIN_S = 0.1
# The minimum time for a lookup, even if the deadline is nearer: a short deadline does not mean that the directory is
# down.
_LOOK_UP_S = 0.5
_NO_SECRET = StoredSecret(Keyring(), "", "")
# For how long a statement may rely on what was known about its database when the statement started.
WITHOUT_CODE_FOR_S = 0.1


def is_still_without_code(known: bool, began_s: float) -> bool:
    """Whether a request that began then may still rely on what was known about its database: that it had no code.

    Code may be stored in the database while a statement waits for a slot or a lock, so only a quick one can.
    """
    return known and time.monotonic() - began_s < WITHOUT_CODE_FOR_S


@dataclass(frozen=True, slots=True)
class Place:
    """Where a principal's statements run: a database, as its owner if the principal may write, else as its reader."""

    database_id: str
    without_code: bool
    address: Address
    stored_secret: StoredSecret = _NO_SECRET
    # Whether `without_code` is reliable. It is not if it was cached before the directory became unavailable.
    certain: bool = True
    # The name that the organization gave it.
    name: str = ""

    @property
    def record_secret(self) -> str:
        """The secret that protects the database's idempotency records; see `engine/execution/records.py`.

        Raises InternalError if it can't be opened. Requests that don't need it work all the same.
        """
        return self.stored_secret.open()


class Databases:
    """The databases of all organizations, by name or id. Cached for as long as principals are."""

    def __init__(self, directory: Directory, freshness: Freshness) -> None:
        self._directory = directory
        self._freshness = freshness
        self._places: Cache[tuple[Principal, str | None], Place] = Cache(
            self._look_up, freshness, lambda key, _: key[0].organization_id
        )
        # Set at the next change notification. None while no request waits for one.
        self._changed: asyncio.Event | None = None
        freshness.on_change(self._wake)

    async def find(self, principal: Principal, name: str | None, deadline: Deadline | None = None) -> Place:
        """Where the request runs. Raises AccessError, or EngineError while the database is not ready.

        While the database is moving to another cell, waits for it: until the deadline, or for 2 s if there is none.
        """
        place = self._places.remembered((principal, name))
        return place or await self._find(principal, name, deadline)

    def remembered(self, principal: Principal, name: str | None) -> tuple[Place, float] | None:
        """The cached place, and until when it is valid, unless a change is announced; None if there is none."""
        return self._places.remembered_until((principal, name))

    async def _find(self, principal: Principal, name: str | None, deadline: Deadline | None) -> Place:
        if name is not None and not DATABASE_NAME.match(name):
            # No database can have this name. Don't let invalid names fill the cache.
            raise AccessError("database_not_found", "There is no database with that name or id.")
        if self._freshness.unavailable:
            known = await self._places.last_known((principal, name))
            if known is not None:
                return replace(known, certain=False)
        within_s = LONGEST_S if deadline is None else min(LONGEST_S, max(deadline.left_s(), _LOOK_UP_S))
        try:
            return await self._places.get((principal, name), within_s)
        except DatabaseHeld:
            return await self._find_held(principal, name, deadline or Deadline.after_ms(_HELD_MS))

    async def _find_held(self, principal: Principal, name: str | None, deadline: Deadline) -> Place:
        while True:
            changed = self._changed = self._changed or asyncio.Event()
            try:
                return await self._places.get((principal, name))
            except DatabaseHeld:
                left_s = deadline.left_s()
                if left_s <= 0:
                    raise database_held() from None
                # Look again in any case: the notification may be lost.
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _LOOK_AGAIN_S)):
                        await changed.wait()

    def _wake(self, _: str | None) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def prepare_for_code(self, place: Place, deadline: Deadline) -> None:
        """Marks a database without code as one with code, before a statement runs that may store code in it.

        The record is changed first, and the statement may run only when no process can still rely on the old one. So
        this waits until every process has either received the change notification or can no longer trust its cache:
        without proof that notifications arrive, a process trusts an entry only for the short time of `Freshness`.
        This happens once in the life of a database, with its first function, view or trigger. Raises LimitError if
        the deadline passes first.
        """
        try:
            async with asyncio.timeout(deadline.left_s()):
                await databases.set_has_code(self._directory, place.database_id)
                await asyncio.sleep(self._freshness.short_s + WITHOUT_CODE_FOR_S)
        except TimeoutError:
            raise LimitError(
                "statement_timeout",
                "The deadline passed before the statement could run.",
                hint="Allow more time: the first statement that stores code in a database takes about"
                f" {self._freshness.short_s + WITHOUT_CODE_FOR_S:.1f} s longer.",
            ) from None

    async def _look_up(self, key: tuple[Principal, str | None]) -> Place:
        principal, name = key
        named = principal.database if name is None else name
        record = await databases.find(self._directory, principal.organization_id, named)
        if principal.database is not None and (record is None or record.name != principal.database):
            kind = "key" if principal.session_id is None else "session"
            raise AccessError("forbidden", f"This {kind} is bound to the database {principal.database!r}.")
        if record is None:
            raise AccessError("database_not_found", _not_found_message(name))
        if record.state is not DatabaseState.READY:
            raise _not_ready(record)
        if record.is_held:
            raise DatabaseHeld
        if record.cell_state in OUT_OF_SERVICE:
            raise cell_is_down()
        secret = StoredSecret(self._directory.secrets, record.record_secret, record.engine_name)
        return Place(record.id, record.without_code, _address(record, principal), secret, name=record.name)


def _address(record: DatabaseRecord, principal: Principal) -> Address:
    if principal.may(Scope.WRITE):
        return Address(record.cell_conninfo, record.engine_name, record.owner_role, cell_name=record.cell_name)
    return Address(
        record.cell_conninfo, record.engine_name, record.reader_role, read_only=True, cell_name=record.cell_name
    )


def _not_found_message(name: str | None) -> str:
    return "Your organization has no default database." if name is None else f"There is no database {name!r}."


def _not_ready(record: DatabaseRecord) -> EngineError | AccessError:
    if record.state is DatabaseState.SUSPENDED:
        return AccessError("database_suspended", f"The operator suspended the database {record.name!r}.")
    state = DatabaseState.CREATING if record.is_being_branched else record.state
    if state is DatabaseState.DELETING:
        return AccessError(
            "database_not_found",
            f"The database {record.name!r} was deleted.",
            hint=f"It may still be possible to restore it: POST /v1/databases/{record.id}/restore.",
        )
    return EngineError(
        "database_not_ready",
        f"The database {record.name!r} isn't ready: its state is {state}.",
        retryable=state is DatabaseState.CREATING,
        retry_after_ms=RETRY_AFTER_MS,
    )
