"""Emptying a customer's database: everything that its owner made is dropped, the database itself stays.

Owns the repeating. A reset is not one transaction, because a database may hold more than one transaction can drop
without harm to others of the cell; it is batches, each done wholly or not at all, each in its turn at the gate. If one
fails, what was dropped stays dropped, and sending the request again goes on.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import ConflictError, LimitError, Outcome, RequestError, ServiceError, StatementError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.data_plane.databases import Place
from plainsql_server.data_plane.service_connections import ServiceConnections
from plainsql_server.directory import audit
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.connection.batch import Answer, Own
from plainsql_server.engine.execution import wipe
from plainsql_server.engine.execution.wipe import BATCH_OBJECTS, Droppable
from plainsql_server.limits.tiers import TIERS

# The lock table of the cell is full at the moment, or the batch alone is too much for it.
_OUT_OF_MEMORY = "53200"
_GO_ON = "What was dropped stays dropped. Send the request again: it goes on with what is left."


@dataclass(slots=True)
class Emptied:
    """How many objects of each kind there were."""

    dropped: dict[str, int]
    exec_us: int = 0


class Resets:
    """Empties databases."""

    def __init__(self, connections: ServiceConnections, directory: Directory) -> None:
        self._connections = connections
        self._directory = directory

    async def run(self, principal: Principal, database: str | None, confirm: str, by: Actor) -> Emptied:
        """Drops what there is. Raises RequestError unless `confirm` is the database's name; ServiceError."""
        owner = principal._replace(scopes=frozenset([Scope.WRITE]))
        place = await self._connections.place(owner, database)
        if confirm != place.name:
            raise RequestError(
                "not_confirmed", "The field confirm is not the name of the database that the request means.",
                hint="Nothing was dropped. Send the database's own name as confirm.",
            )  # fmt: skip
        reader = (
            await self._connections.place(principal._replace(scopes=frozenset([Scope.READ])), database)
        ).address.role
        async with self._directory.connection() as connection, connection.transaction():
            # Before the first object is gone: nothing of this size happens without an entry.
            await audit.note(connection, by, "database.reset", principal.organization_id, place.database_id)
        emptying = _Emptying(self._connections, owner, place, [place.address.role, reader])
        return await emptying.run()


class _Emptying:
    """One reset, under way."""

    def __init__(self, connections: ServiceConnections, owner: Principal, place: Place, roles: Sequence[str]) -> None:
        self._connections = connections
        self._owner = owner
        self._place = place
        self._roles = roles
        # The longest that any request of the tier may take.
        self._life_ms = TIERS[owner.tier].stream_life_ms
        self._until_s = time.monotonic() + self._life_ms / 1000
        self._batch_objects = BATCH_OBJECTS
        self._has_dropped = False
        self._done = Emptied({})

    async def run(self) -> Emptied:
        *_, counted, _ = await self._service(wipe.count(self._roles))
        self._done.dropped = wipe.read_counts(counted.rows)
        while found := await self._find():
            await self._drop(found)
        await self._service(wipe.make_public_anew(self._roles[1]))
        return self._done

    async def _find(self) -> list[Droppable]:
        *_, found, _ = await self._service(wipe.find(self._roles))
        return wipe.read_found(found.rows)

    async def _drop(self, found: list[Droppable]) -> None:
        """Drops what it can of what was found; the rest is found again. Raises where it could drop nothing."""
        refusal: StatementError | None = None
        dropped = False
        while found:
            batch = found[: self._batch_objects]
            try:
                await self._service(wipe.drop(batch))
                dropped = self._has_dropped = True
            except StatementError as error:
                # In somebody's way, or too much at once. What hangs on too many others may have fewer of them later.
                if not error.retryable and error.diagnosis.sqlstate != _OUT_OF_MEMORY:
                    raise
                refusal = error
                if self._batch_objects > 1:
                    self._batch_objects //= 2
                    continue
            del found[: len(batch)]
        if refusal is not None and not dropped:
            raise refusal

    async def _service(self, statements: list[bytes | Own]) -> list[Answer]:
        if time.monotonic() >= self._until_s:
            raise self._timed_out()
        try:
            async with self._connections.open(self._owner, self._place.name) as service:
                if service.place.address != self._place.address:
                    raise _replaced()
                try:
                    return await service.run(*statements)
                finally:
                    self._done.exec_us += service.exec_us
        except ServiceError as error:
            # It is one of our statements, which the caller did not number; and what became of it is not what became of
            # the request, of which some is done already.
            error.statement_index = None
            if self._has_dropped and error.outcome in (Outcome.NOT_EXECUTED, Outcome.ROLLED_BACK):
                error.outcome = Outcome.COMMITTED
                error.hint = error.hint or _GO_ON
            raise

    def _timed_out(self) -> LimitError:
        return LimitError(
            "reset_timed_out",
            f"The database was not empty within {self._life_ms} ms, the longest that a request may take in the tier"
            f" {self._owner.tier!r}.",
            hint=_GO_ON,
            retryable=True,
            outcome=Outcome.COMMITTED,
        )


def _replaced() -> ConflictError:
    return ConflictError(
        "wrong_state", "Another database has taken the name of the one that was being emptied, or its place."
    )
