"""A client that reaches one machine of a cell and no other: what a former leader answers it.

Owns its thread, which goes past the service, as the superuser, and writes one number after the other.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psycopg

from server.tests.failover.ha_cell import HaCell
from server.tests.failover.machines import Machine

_PAUSE_S = 0.1


@dataclass
class PartitionedClient:
    """Writes to its machine for as long as it runs, whatever that says."""

    cell: HaCell
    machine: Machine
    database: str
    acknowledged: dict[int, float] = field(default_factory=dict)
    _sent_s: dict[int, float] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _number: int = field(default_factory=time.monotonic_ns)

    @classmethod
    @contextmanager
    def of(cls, cell: HaCell, machine: Machine) -> Iterator["PartitionedClient"]:
        with cell.connect() as admin:
            row = admin.execute("select datname from pg_database where datname like 'd\\_%'").fetchone()
        assert row is not None
        with cell.connect(database=row[0]) as admin:
            admin.execute("create table if not exists partitioned (n bigint primary key)")
        client = cls(cell, machine, row[0])
        thread = threading.Thread(target=client._run)
        thread.start()
        try:
            yield client
        finally:
            client.stop()
            thread.join()

    async def has_written(self) -> None:
        async with asyncio.timeout(20):
            while not self.acknowledged:  # noqa: ASYNC110  # another thread is watched
                await asyncio.sleep(0.01)

    def acknowledged_after(self, since_s: float) -> list[int]:
        """What was acknowledged although it was sent after a moment, while another machine led."""
        return [number for number in self.acknowledged if self._sent_s[number] > since_s]

    def finds_a_leader(self) -> bool:
        """Whether its machine takes itself for the leader."""
        with suppress(psycopg.Error), self.cell.connect(self.machine, self.database) as connection:
            row = connection.execute("select pg_is_in_recovery()").fetchone()
            return row == (False,)
        return False

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(psycopg.Error), self.cell.connect(self.machine, self.database) as connection:
                while not self._stopped.is_set():
                    self._write(connection)
            self._stopped.wait(_PAUSE_S)

    def _write(self, connection: psycopg.Connection) -> None:
        self._number += 1
        self._sent_s[self._number] = time.monotonic()
        connection.execute("insert into partitioned values (%s)", (self._number,))
        self.acknowledged[self._number] = time.monotonic()
        self._stopped.wait(_PAUSE_S)
