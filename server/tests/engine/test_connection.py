"""A connection to a real PostgreSQL whose answers arrive in awkward pieces."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from plainsql_server.core.errors import EngineError, InternalError, Outcome, ServiceError
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import drain_commit, run_command
from plainsql_server.engine.connection.queries import query_values
from plainsql_server.engine.connection.valve import ResultTooLarge
from server.tests.postgres import SUPERUSER, Postgres

VALUE_BYTES = 120_000
LIMIT_BYTES = 32_000
# More than the answers to `begin`, less than the buffer that libpq starts with.
FIRST_CHUNK_BYTES = 4_000


class TwoChunks:
    """Stands before PostgreSQL and passes a long answer on in two chunks: its beginning and, on request, the rest."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._engine = socket.socket(socket.AF_UNIX)
        self._engine.connect(f"{postgres.socket_dir}/.s.PGSQL.5432")
        self._client: socket.socket | None = None
        self.send_rest = threading.Event()
        self.rest_sent = threading.Event()

    def serve(self) -> None:
        self._client, _ = self._listener.accept()
        threading.Thread(target=self._pass_on, args=(self._client, self._engine)).start()
        while answer := self._engine.recv(1 << 20):
            self._client.sendall(answer[:FIRST_CHUNK_BYTES])
            if len(answer) > FIRST_CHUNK_BYTES:
                self.send_rest.wait(30)
                while len(answer) < VALUE_BYTES:
                    answer += self._engine.recv(1 << 20)
                # So much fits into the socket's buffer: the reader finds all of it at once.
                self._client.sendall(answer[FIRST_CHUNK_BYTES:])
                self.rest_sent.set()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        # A client that leaves before it has read everything resets the connection.
        with suppress(ConnectionResetError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, self._client, self._engine):
            if each is not None:
                each.close()


@contextmanager
def answers_in_two_chunks(postgres: Postgres) -> Iterator[tuple[str, TwoChunks]]:
    """A conninfo, and what stands behind it."""
    with tempfile.TemporaryDirectory(prefix="plainsql-test-") as folder:
        between = TwoChunks(Path(folder), postgres)
        thread = threading.Thread(target=between.serve)
        thread.start()
        try:
            yield f"host={folder} user={SUPERUSER} dbname=postgres sslmode=disable gssencmode=disable", between
        finally:
            thread.join(30)
            between.close()


async def test_a_large_value_that_starts_in_the_chunk_of_an_earlier_result_is_counted(postgres: Postgres) -> None:
    """libpq has made room for all of the value by then, and would read it in one go if it were there."""
    with answers_in_two_chunks(postgres) as (conninfo, between):
        connection = await Connection.open(conninfo.encode(), 5)
        connection.max_result_bytes = LIMIT_BYTES
        connection.send_query(b"begin")
        connection.send_query(f"select repeat('x', {VALUE_BYTES})".encode(), chunk_rows=32)
        connection.sync()
        assert await connection.fetch() is not None
        assert await connection.fetch() is None
        waiting = asyncio.create_task(connection.fetch())
        await asyncio.sleep(0)
        assert not waiting.done()
        between.send_rest.set()
        # The event loop stands still until everything is there.
        assert between.rest_sent.wait(30)
        try:
            with pytest.raises(ResultTooLarge):
                await waiting
        finally:
            connection.close()


async def test_a_commit_that_rolls_back_is_no_commit(postgres: Postgres) -> None:
    connection = await Connection.open(postgres.dsn().encode(), 5)
    try:
        await run_command(connection, b"begin")
        with pytest.raises(ServiceError):
            await run_command(connection, b"select 1 / 0")
        connection.send_query(b"commit")
        connection.sync()
        with pytest.raises(InternalError) as raised:
            await drain_commit(connection)
        assert raised.value.outcome is Outcome.ROLLED_BACK
        assert connection.is_idle
        # What a statement before it answers does not matter.
        for sql in (b"begin", b"savepoint s", b"rollback to s", b"commit"):
            connection.send_query(sql)
        connection.sync()
        await drain_commit(connection)
    finally:
        connection.close()


async def test_a_service_query_ends_in_time_on_a_server_that_stops_answering(postgres: Postgres) -> None:
    conninfo = postgres.dsn().encode()
    assert await query_values(conninfo, "select $1::text", b"1", 5) == [["1"]]
    with pytest.raises(EngineError):
        await query_values(conninfo, "select pg_sleep(60)::text, $1::text", b"1", 0.5)
