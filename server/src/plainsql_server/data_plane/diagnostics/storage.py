"""Tests a round trip to the storage of a customer's database: write, sync, read, verify, delete.

The data is written in one transaction, so a full disk leaves nothing behind. The sync is PostgreSQL's: the commit waits
until the write-ahead log is on disk, and the flushed log position confirms it.
"""

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import AccessError, EngineError, LimitError, ServiceError
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics.temporary_schemas import TemporarySchemas
from plainsql_server.data_plane.service_connections import ServiceConnection, ServiceConnections
from plainsql_server.engine.connection.batch import SAFE_PATH
from plainsql_server.engine.execution import temporary_schemas

# Large enough to need several pages and several log writes, small enough to cause no load.
SIZE_BYTES = 1024 * 1024
_PART_BYTES = 64 * 1024
_BEGIN = b"begin isolation level read committed read write"
_POSITION = b"select pg_current_wal_insert_lsn()"
_IS_FLUSHED = b"select pg_catalog.pg_current_wal_flush_lsn() operator(pg_catalog.>=) $1::pg_catalog.pg_lsn"
_IS_THERE = b"select 1 from pg_catalog.pg_namespace where nspname operator(pg_catalog.=) $1::pg_catalog.name"
_TRUE = b"t"


StepName = Literal["write", "sync", "read", "verify", "delete"]


@dataclass(slots=True)
class RoundTripStep:
    """One step of the round trip, and how long it took."""

    name: StepName
    ok: bool
    us: int


@dataclass(slots=True)
class RoundTrip:
    """The steps of a round trip, and its failure, if it failed."""

    checksum: str
    steps: list[RoundTripStep] = field(default_factory=list)
    failure: ServiceError | None = None
    exec_us: int = 0
    queue_us: int = 0


class StepFailed(Exception):
    """A step did not have the expected result, such as data that differs from what was written."""


class StorageTests:
    """Runs storage tests."""

    def __init__(self, connections: ServiceConnections, schemas: TemporarySchemas) -> None:
        self._connections = connections
        self._schemas = schemas

    async def run(self, principal: Principal, database: str | None) -> RoundTrip:
        """Runs one round trip. Raises AccessError if there is no such database, LimitError if no slot became free.

        Any other failure is in the result.
        """
        written = os.urandom(SIZE_BYTES)
        trip = RoundTrip(_checksum(written))
        name = temporary_schemas.new_schema_name()
        async with self._schemas.slot(principal):
            try:
                await self._write(principal, database, trip, name, written)
                await self._read(principal, database, trip, name)
            except (ServiceError, StepFailed) as error:
                if isinstance(error, AccessError) or (isinstance(error, LimitError) and not trip.steps):
                    # No such database, or no free slot: that says nothing about the storage.
                    raise
                trip.failure = _failure(error, trip)
            finally:
                if any(step.name == "sync" for step in trip.steps):
                    await self._delete(principal, database, trip, name)
        return trip

    async def _write(
        self, principal: Principal, database: str | None, trip: RoundTrip, name: str, written: bytes
    ) -> None:
        async with self._connections.open(principal, database) as service, _counted(service, trip):
            async with _step(trip, "write"):
                *_, position = await service.run(
                    _BEGIN, SAFE_PATH, temporary_schemas.create(name),
                    f"create table {name}.parts (number int primary key, body bytea not null)".encode(),
                    *[
                        (f"insert into {name}.parts values ($1::int, $2::bytea)".encode(), [b"%d" % at, _hex(part)])
                        for at, part in enumerate(_parts(written))
                    ],
                    _POSITION,
                )  # fmt: skip
            async with _step(trip, "sync"):
                _, flushed = await service.run(b"commit", (_IS_FLUSHED, [position.rows[0][0]]))
                _require(flushed.rows == [[_TRUE]], "PostgreSQL reported the commit before it was on disk.")

    async def _read(self, principal: Principal, database: str | None, trip: RoundTrip, name: str) -> None:
        # Use a separate slot, and so possibly another connection: data that only one session can see is not stored.
        async with self._connections.open(principal, database) as service, _counted(service, trip):
            async with _step(trip, "read"):
                (parts,) = await service.run(f"select body from {name}.parts order by number".encode())
            async with _step(trip, "verify"):
                found = b"".join(bytes.fromhex((row[0] or b"")[2:].decode()) for row in parts.rows)
                _require(_checksum(found) == trip.checksum, "The data read differs from the data written.")

    async def _delete(self, principal: Principal, database: str | None, trip: RoundTrip, name: str) -> None:
        try:
            async with (
                self._connections.open(principal, database) as service,
                _counted(service, trip),
                _step(trip, "delete"),
            ):
                _, left = await service.run(temporary_schemas.drop(name), (_IS_THERE, [name.encode()]))
                _require(not left.rows, "The temporary data was not removed.")
        except (ServiceError, StepFailed) as error:
            trip.failure = trip.failure or _failure(error, trip)


@asynccontextmanager
async def _step(trip: RoundTrip, name: StepName) -> AsyncIterator[None]:
    step = RoundTripStep(name, False, 0)
    trip.steps.append(step)
    began_us = monotonic_us()
    try:
        yield
        step.ok = True
    finally:
        step.us = monotonic_us() - began_us


@asynccontextmanager
async def _counted(service: ServiceConnection, trip: RoundTrip) -> AsyncIterator[None]:
    try:
        yield
    finally:
        trip.exec_us += service.exec_us
        trip.queue_us += service.queue_us


def _failure(error: ServiceError | StepFailed, trip: RoundTrip) -> EngineError:
    at = "before the first step"
    if trip.steps:
        at = f"{'after' if trip.steps[-1].ok else 'at'} the step {trip.steps[-1].name!r}"
    if isinstance(error, StepFailed):
        return EngineError("storage_failed", f"The round trip failed {at}: {error}")
    return EngineError(
        "storage_failed", f"The round trip failed {at}: {error.message}", hint=error.hint, diagnosis=error.diagnosis,
        retryable=error.retryable, retry_after_ms=error.retry_after_ms, outcome=error.outcome,
        internal_context=error.internal_context,
    )  # fmt: skip


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StepFailed(otherwise)


def _parts(written: bytes) -> list[bytes]:
    return [written[start : start + _PART_BYTES] for start in range(0, len(written), _PART_BYTES)]


def _hex(part: bytes) -> bytes:
    return b"\\x" + part.hex().encode()


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
