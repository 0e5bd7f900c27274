"""Resets a customer's database: drops everything that its owner created, and keeps the database itself.

A reset is not one transaction, because a database may hold more objects than one transaction can drop without harming
other tenants of the cell. It runs in batches. Each batch is atomic and goes through the admission queue on its own. If
one fails, the objects dropped so far stay dropped; sending the request again continues.
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
from plainsql_server.engine.connection.batch import BatchResult, Own
from plainsql_server.engine.execution import wipe
from plainsql_server.engine.execution.wipe import BATCH_OBJECTS, Droppable
from plainsql_server.limits.tiers import TIERS

# The cell's lock table is full, or the batch alone is too large for it.
_OUT_OF_MEMORY = "53200"
_GO_ON = "Objects that were dropped stay dropped. Send the request again to continue."


@dataclass(slots=True)
class Emptied:
    """The number of objects of each kind before the reset."""

    dropped: dict[str, int]
    exec_us: int = 0


class Resets:
    """Resets databases."""

    def __init__(self, connections: ServiceConnections, directory: Directory) -> None:
        self._connections = connections
        self._directory = directory

    async def run(self, principal: Principal, database: str | None, confirm: str, by: Actor) -> Emptied:
        """Resets the database. Raises RequestError unless `confirm` is its name or id, or another ServiceError."""
        owner = principal._replace(scopes=frozenset([Scope.WRITE]))
        place = await self._connections.place(owner, database)
        if confirm not in (place.name, place.database_id):
            raise RequestError(
                "not_confirmed", "`confirm` is neither the name nor the id of the database.",
                hint="Nothing was dropped. Set `confirm` to the name of the database you want to reset.",
            )  # fmt: skip
        reader = (
            await self._connections.place(principal._replace(scopes=frozenset([Scope.READ])), database)
        ).address.role
        # Written before the first object is dropped, so that no reset goes unrecorded.
        await audit.note_reset(self._directory, by, principal.organization_id, place.database_id)
        emptying = _Emptying(self._connections, owner, place, [place.address.role, reader])
        return await emptying.run()


class _Emptying:
    """One reset in progress."""

    def __init__(self, connections: ServiceConnections, owner: Principal, place: Place, roles: Sequence[str]) -> None:
        self._connections = connections
        self._owner = owner
        self._place = place
        self._roles = roles
        # The longest time that any request of the tier may take.
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
        """Drops as many of these objects as it can; the next search finds the rest. Raises if it could drop none."""
        refusal: StatementError | None = None
        dropped = False
        while found:
            batch = found[: self._batch_objects]
            try:
                await self._service(wipe.drop(batch))
                dropped = self._has_dropped = True
            except StatementError as error:
                # A conflict with other requests, or too much at once. Objects with too many dependents may have fewer
                # later, so skip them for now.
                if not error.retryable and error.diagnosis.sqlstate != _OUT_OF_MEMORY:
                    raise
                refusal = error
                if self._batch_objects > 1:
                    self._batch_objects //= 2
                    continue
            del found[: len(batch)]
        if refusal is not None and not dropped:
            raise refusal

    async def _service(self, statements: list[bytes | Own]) -> list[BatchResult]:
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
            # The index of our own statement means nothing to the caller. And the outcome of one batch is not the
            # outcome of the request, which may already have dropped objects.
            error.statement_index = None
            if self._has_dropped and error.outcome in (Outcome.NOT_EXECUTED, Outcome.ROLLED_BACK):
                error.outcome = Outcome.COMMITTED
                error.hint = error.hint or _GO_ON
            raise

    def _timed_out(self) -> LimitError:
        return LimitError(
            "reset_timed_out",
            f"The reset did not finish within {self._life_ms} ms, the longest time that the {self._owner.tier} tier"
            " allows.",
            hint=_GO_ON,
            retryable=True,
            outcome=Outcome.COMMITTED,
        )


def _replaced() -> ConflictError:
    return ConflictError(
        "wrong_state", "During the reset, the database was moved, or its name now belongs to another database."
    )
