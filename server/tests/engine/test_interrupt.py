"""How long the slot of a backend that ignores termination is kept: until the backend has exited, and no shorter."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from plainsql_server.engine.connection import interrupt
from plainsql_server.engine.connection.interrupt import gone
from plainsql_server.engine.connection.queries import query_values
from server.tests.engine.conftest import ROLE
from server.tests.postgres import SUPERUSER, Postgres

# Enough that the answer to the first one has been dealt with.
_LOOKS = 3


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The looks so far, which come without a pause."""
    seen: list[bytes] = []

    async def look(conninfo: bytes, sql: str, parameter: bytes, timeout_s: float) -> list[list[str]]:
        seen.append(parameter)
        return await query_values(conninfo, sql, parameter, timeout_s)

    monkeypatch.setattr(interrupt, "query_values", look)
    monkeypatch.setattr(interrupt, "_LOOK_EVERY_S", 0.01)
    return seen


@pytest.fixture
def silent() -> Iterator[Path]:
    """The socket of a server that accepts connections and never answers. Removing it shuts that server down."""
    with TemporaryDirectory(prefix="plainsql-test-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / ".s.PGSQL.5432"
        listener.bind(str(path))
        listener.listen()
        yield path


async def _waits_on(task: "asyncio.Task[None]", looks: list[bytes]) -> None:
    while len(looks) < _LOOKS and not task.done():  # noqa: ASYNC110 - looks announce nothing
        await asyncio.sleep(0.01)
    assert not task.done()


@pytest.fixture
def probe(postgres: Postgres) -> bytes:
    """How another role than the tenant asks, in another database."""
    return psycopg.conninfo.make_conninfo(postgres.conninfo, user=SUPERUSER, dbname="postgres").encode()


async def test_a_tenant_without_a_free_connection_keeps_no_look_from_succeeding(
    postgres: Postgres, engine: psycopg.Connection, database: str, probe: bytes, looks: list[bytes]
) -> None:
    conninfo = psycopg.conninfo.make_conninfo(postgres.conninfo, user=ROLE, dbname=database)
    engine.execute(f"alter role {ROLE} connection limit 1")
    with psycopg.connect(conninfo) as deaf:
        task = asyncio.create_task(gone(deaf.info.backend_pid, ROLE, probe))
        await _waits_on(task, looks)
    await task


async def test_a_backend_is_gone_with_its_database(
    postgres: Postgres, engine: psycopg.Connection, database: str, probe: bytes, looks: list[bytes]
) -> None:
    conninfo = psycopg.conninfo.make_conninfo(postgres.conninfo, user=ROLE, dbname=database)
    running = psycopg.connect(conninfo)
    task = asyncio.create_task(gone(running.info.backend_pid, ROLE, probe))
    await _waits_on(task, looks)
    await asyncio.to_thread(engine.execute, f"drop database {database} with (force)")
    await task
    running.close()


async def test_another_role_s_backend_with_the_same_process_id_is_another_one(postgres: Postgres, probe: bytes) -> None:
    with postgres.connect() as other:
        await gone(other.info.backend_pid, ROLE, probe)


async def test_a_server_that_answers_late_says_nothing_about_a_backend_and_one_that_is_down_has_none(
    silent: Path, looks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "_LOOK_TIMEOUT_S", 0.05)
    task = asyncio.create_task(gone(1, ROLE, f"host={silent.parent} port=5432".encode()))
    await _waits_on(task, looks)
    silent.unlink()
    await task


async def test_a_backend_matters_no_more_when_another_server_is_the_primary(
    silent: Path, looks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "_LOOK_TIMEOUT_S", 0.05)
    await gone(1, ROLE, f"host={silent.parent} port=5432".encode(), lambda: len(looks) == _LOOKS)
    assert len(looks) == _LOOKS


async def test_a_backend_is_waited_for_until_it_has_exited(
    postgres: Postgres, database: str, probe: bytes, looks: list[bytes]
) -> None:
    conninfo = psycopg.conninfo.make_conninfo(postgres.conninfo, user=ROLE, dbname=database)
    with psycopg.connect(conninfo) as running:
        task = asyncio.create_task(gone(running.info.backend_pid, ROLE, probe))
        await _waits_on(task, looks)
    await task
