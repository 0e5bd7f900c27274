"""Recovery while a cell does not answer: it delays only transactions that need that cell."""

import asyncio
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from plainsql_server.control_plane.spanning import Recovery
from plainsql_server.core.errors import EngineError
from plainsql_server.core.ids import Kind, new_id
from plainsql_server.core.observation import Observation
from plainsql_server.core.tasks import end
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.engine.admin.reaping import CellWatch
from plainsql_server.engine.execution.spanning import new_gid
from server.tests.control_plane.records import is_made, is_prepared, prepare, unfreed
from server.tests.load import STALL_S
from server.tests.postgres import SUPERUSER, Postgres
from server.tests.processes import wait_for

# What can be reached is finished by then: the second between two looks, and the finding out that a cell is away.
SOON_S = 5
# What is promised.
BOUND_S = 10


class SilentCell:
    """Something that takes connections and says nothing, as a server does that hangs or is cut off."""

    def __init__(self, folder: str) -> None:
        self.conninfo = f"host={folder} port=5432"
        self._path = Path(folder) / ".s.PGSQL.5432"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(1000)
        self._listener.setblocking(False)
        self.database_ids: list[str] = []

    def connections(self) -> int:
        """How many there were since this was asked last."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
                count += 1
        return count

    def become(self, postgres: Postgres) -> None:
        """From now on it is that server which answers."""
        self._path.unlink()
        self._path.symlink_to(Path(postgres.socket_dir) / self._path.name)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
async def silent(directory: Directory) -> AsyncIterator[SilentCell]:
    """A cell that does not answer, with a database for each of more organizations than are looked at together."""
    with tempfile.TemporaryDirectory(prefix="plainsql-test-") as folder:
        cell = SilentCell(folder)
        async with directory.connection() as connection:
            await connection.execute(
                "insert into cells (id, name, conninfo, admin_role, state)"
                " values ('cell_x', 'silent', %s, %s, 'active')",
                (cell.conninfo, SUPERUSER),
            )
            await connection.execute(
                "insert into organizations (id, name, tier)"
                " select 'org_' || n, 'silent ' || n, 'free' from generate_series(1, 70) n"
            )
            found = await connection.execute(
                "insert into databases (id, organization_id, name, state, engine_name, cell_id)"
                " select 'db_' || n, 'org_' || n, 'main', 'ready', 'd_' || n, 'cell_x' from generate_series(1, 70) n"
                " returning id"
            )
            cell.database_ids = [row["id"] for row in await found.fetchall()]
        yield cell
        cell.close()


async def strand(directory: Directory, gid: str, organization_id: str, *database_ids: str) -> None:
    """Stores a record of a transaction that was committed and that nobody holds any more."""
    statement = """
        INSERT INTO spanning_transactions (id, organization_id, gid, database_ids, state, held_until)
        VALUES (%s, %s, %s, %s, 'committed', now())
    """
    values = (new_id(Kind.TRANSACTION), organization_id, gid, list(database_ids))
    async with directory.connection() as connection:
        await connection.execute(statement, values)


@asynccontextmanager
async def at_work(recovery: Recovery) -> AsyncIterator[None]:
    working = asyncio.create_task(recovery.run())
    try:
        yield
    finally:
        await end(working)


async def test_an_unresponsive_cell_delays_only_requests_that_need_it(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, silent: SilentCell, recovery: Recovery,
    *, seen: list[Observation],
) -> None:  # fmt: skip
    for number, each in enumerate(silent.database_ids, 1):
        await strand(directory, new_gid(), f"org_{number}", each)
    async with at_work(recovery):
        await until(lambda: bool(seen))
        # It is known to be unavailable. Requests for it now wait for the next check.
        for _ in range(3):
            silent.connections()
            gid = prepare(postgres, database)
            began_s = time.monotonic()
            await strand(directory, gid, database.organization_id, database.id)
            await until(lambda gid=gid: not is_prepared(postgres, gid))  # type: ignore[misc]
            took_s = time.monotonic() - began_s
            assert took_s < SOON_S + STALL_S
            # Seventy wait for it, and one of them asks.
            assert silent.connections() <= 3 + took_s
            with postgres.connect(database=database.engine_name) as admin:
                admin.execute("drop table made")
            await until_freed(directory, database)
    assert await unfreed(directory) == len(silent.database_ids)


async def test_recovery_on_a_responsive_cell_does_not_wait_for_an_unresponsive_one(
    postgres: Postgres, directory: Directory, database: DatabaseRecord, silent: SilentCell, recovery: Recovery
) -> None:
    gid = prepare(postgres, database)
    await strand(directory, gid, database.organization_id, database.id, silent.database_ids[0])
    began_s = time.monotonic()
    async with at_work(recovery):
        await until(lambda: not is_prepared(postgres, gid))
        assert time.monotonic() - began_s < SOON_S + STALL_S
    assert is_made(postgres, database)
    assert await unfreed(directory) == 1


async def test_a_recovered_cell_has_its_transactions_in_doubt_finished_in_time(
    postgres: Postgres, directory: Directory, cell: CellRecord, database: DatabaseRecord, silent: SilentCell,
    *, recovery: Recovery, seen: list[Observation],
) -> None:  # fmt: skip
    for number, each in enumerate(silent.database_ids, 1):
        await strand(directory, new_gid(), f"org_{number}", each)
    async with directory.connection() as connection:
        await connection.execute("update databases set cell_id = 'cell_x' where id = %s", (database.id,))
    gid = prepare(postgres, database)
    await strand(directory, gid, database.organization_id, database.id)
    async with at_work(recovery):
        await until(lambda: bool(seen))
        silent.become(postgres)
        async with asyncio.timeout(BOUND_S):
            while await unfreed(directory):  # noqa: ASYNC110  # a database is watched
                await asyncio.sleep(0.05)
    assert is_made(postgres, database)


async def test_a_postgresql_that_stops_answering_after_login_is_unavailable(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plainsql_server.engine.admin.reaping._NO_REPLY_S", 0.5)
    async with asyncio.timeout(60), CellWatch.beside(postgres.conninfo, SUPERUSER) as cell:
        pid = cell._connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EngineError):
                await cell.where_prepared("nobody's")
        finally:
            os.kill(pid, signal.SIGCONT)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition, 60, lambda: "it does not come")


async def until_freed(directory: Directory, database: DatabaseRecord) -> None:
    statement = "select from spanning_transactions where freed_at is null and organization_id = %s"
    async with asyncio.timeout(60), directory.connection() as connection:
        while (await connection.execute(statement, (database.organization_id,))).rowcount:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
