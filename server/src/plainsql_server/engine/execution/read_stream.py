"""Streams the rows of a read-only query as PostgreSQL produces them.

The transaction is serializable and read-only, on a safe snapshot if one is available within a short wait (decision
0009).

A backend buffers the rows of an ordinary statement until it has eight kilobytes, so a query that produces one row per
second would show nothing for minutes. The result of a FETCH from a cursor is sent at once. So the stream fetches one
row at first, more with each FETCH while rows arrive promptly, and one row again when they do not. Two FETCHes are
always in the pipeline, so the backend never waits for the client. The size of a FETCH also bounds the memory in use:
some rows, or one large row.
"""

import re
import time
from collections import deque
from contextlib import suppress

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError, ServiceError, StatementError
from plainsql_server.core.long_work import LONG_BYTES
from plainsql_server.core.result import Completion
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.exchange import drain, queue_discard_sequences
from plainsql_server.engine.connection.sqlstate import error_from_result
from plainsql_server.engine.connection.valve import ResultTooLarge
from plainsql_server.engine.encoding.widths import widest_row_bytes
from plainsql_server.engine.execution.execution import (
    CHANGED_MODE,
    NOTHING_DEFERRED,
    STILL_READ_ONLY,
    STILL_SERIALIZABLE,
    ResultStream,
    Statement,
    changed_mode,
)

_CURSOR = b"plainsql_stream"
_DECLARE = f"declare {_CURSOR.decode()} no scroll cursor for "
_UNDER_WAY = 2
# The next FETCH asks for at most 1/16 of the rows received so far. So if a fast query becomes slow, few rows are late.
_GROWTH = 16
# Larger FETCHes are hardly faster (measured for decision 0009).
_MAX_ROWS = 256
# The same as the service buffers for a slow client elsewhere.
_MAX_BYTES = 64 * 1024
# Rows per libpq result. Few, because large rows can follow small ones, and libpq holds that many in memory. More if the
# column types bound the row size.
_CHUNK_ROWS = 8
_BOUNDED_CHUNK_ROWS = 32
# Rows above this size are taken from libpq one at a time, to keep few of them in memory.
_LARGE_ROW_BYTES = 4 * 1024
# A FETCH that took less than the first is prompt, and the next one may be larger. After one that took longer than the
# second, the next asks for a single row.
_PROMPT_S = 0.005
_LATE_S = 0.02

_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)
_QUERY_CANCELED = "57014"
_WRITES_IN_READ_ONLY = "25006"
# Functions that PostgreSQL allows in a read-only transaction although they assign a transaction ID, which `close`
# rejects.
_WRITES_ALL_THE_SAME = re.compile(r"\b(?:lo_\w+|txid_current|pg_current_xact_id)\s*\(", re.IGNORECASE)


class NoSafeSnapshot(Exception):
    """No safe snapshot became available in time. The transaction has failed and must be rolled back."""


class ReadStream(ResultStream):
    """The rows of one query: at most `max_rows` and one more, which shows that there are more. None means all rows.

    It waits up to `budget_ms` for a safe snapshot; 0 means that any snapshot will do. Call `open`, then `next_rows`
    until None, then `close`. Any of them may raise. After that, or if one is cancelled, the connection is in a
    transaction or in the middle of an exchange.
    """

    def __init__(
        self, connection: Connection, catalog: Catalog, statement: Statement, max_rows: int | None, budget_ms: int = 0
    ) -> None:
        super().__init__(connection, catalog, statement)
        self._budget_ms = budget_ms
        self._left = None if max_rows is None else max_rows + 1
        self._size = 1
        self._count = 0
        # The sizes of the FETCHes in the pipeline, and how many rows of the first one have been read.
        self._asked: deque[int] = deque()
        self._got = 0
        self._largest_bytes = 0
        self._waited_s = 0.0
        # The largest row of the last FETCH, and how many rows libpq may put in one result.
        self._row_bytes = 0
        self._fetch_chunk_rows = _CHUNK_ROWS
        # A result with large rows, and how many of them have been encoded.
        self._large: PGresult | None = None
        self._rendered = 0
        self._first: list[bytes] | None = None
        self._is_over = False

    async def open(self) -> None:
        """Begins the transaction and declares the cursor. The query does not run yet.

        Raises parse and analysis errors. Their positions count the DECLARE before the caller's text.
        """
        if _WRITES_ALL_THE_SAME.search(self._statement.sql):
            raise RequestError(
                "transaction_control",
                "The statement calls a function that assigns a transaction ID, which isn't allowed in a stream.",
            )
        await self.start()
        self._pending = None
        await drain(self._connection)

    async def begin(self) -> None:
        """Waits for the first row, or for the end if there is none. The shape is known then."""
        self._first = await self._fetched()

    async def next_rows(self) -> list[bytes] | None:
        """Returns the next rows, at least one, or None at the end."""
        rows, self._first = self._first, None
        while not rows:
            if self._is_over:
                return None
            rows = await self._fetched()
        return rows

    async def close(self) -> Completion:
        """Commits the transaction. Raises RequestError, and rolls back, if the query wrote in spite of READ ONLY."""
        connection = self._connection
        await drain(connection)
        # Deferred constraints may run code, so they must run before the guards.
        for command in (NOTHING_DEFERRED, STILL_SERIALIZABLE, STILL_READ_ONLY, b"commit"):
            connection.send_query(command)
        connection.sync()
        try:
            await drain(connection)
        except StatementError as error:
            if error.diagnosis.sqlstate in CHANGED_MODE:
                raise changed_mode() from error
            raise
        return Completion("SELECT", 0, monotonic_us() - self._started_us, connection.take_notices())

    def _text(self) -> str:
        return _DECLARE + self._statement.sql

    def _chunk_rows(self) -> int:
        # libpq accepts no chunked mode for a statement that is skipped after an error, and DECLARE, which returns no
        # rows, may be skipped.
        return 0

    def _send_preamble(self) -> int:
        connection = self._connection
        steps = queue_discard_sequences(connection, self._statement.session_state())
        commands = [
            b"begin isolation level serializable read only",
            # The whole result is wanted, not just its first rows, so plan the cursor like an ordinary statement.
            b"set local cursor_tuple_fraction = 1",
        ]
        if self._budget_ms:
            # A separate statement waits for the safe snapshot. So statement_timeout ends the wait, and no cancel
            # request is needed.
            commands[0] += b", deferrable"
            commands += [
                b"set local statement_timeout = %d" % self._budget_ms,
                b"select",
                b"set local statement_timeout = 0",
            ]
        for command in commands:
            connection.send_query(command)
        return steps + len(commands)

    def _send_rest(self) -> int:
        # The transaction stays open: `close` commits it.
        return 0

    async def _skip_step(self) -> None:
        try:
            await super()._skip_step()
        except StatementError as error:
            if self._budget_ms and error.diagnosis.sqlstate == _QUERY_CANCELED:
                raise NoSafeSnapshot from error
            raise

    def _ask(self) -> bool:
        size = self._size if self._left is None else min(self._size, self._left)
        if size == 0:
            return False
        if self._left is not None:
            self._left -= size
        chunk_rows = 1 if self._row_bytes > _LARGE_ROW_BYTES else min(size, self._fetch_chunk_rows)
        self._connection.make_way()
        self._connection.send_query(b"fetch %d from %b" % (size, _CURSOR), chunk_rows)
        self._connection.sync()
        self._asked.append(size)
        return True

    async def _fetched(self) -> list[bytes]:
        """Returns the next rows of the first FETCH in the pipeline; an empty list if it had no more."""
        while len(self._asked) < _UNDER_WAY and self._ask():
            pass
        began_s = time.monotonic()
        rows, is_end = await self._read_some()
        self._waited_s += time.monotonic() - began_s
        self._got += len(rows)
        self._count += len(rows)
        if is_end:
            self._end_fetch(self._asked.popleft())
        return rows

    async def _read_some(self) -> tuple[list[bytes], bool]:
        """Reads rows up to about _MAX_BYTES. Also returns whether the FETCH ends with them."""
        rows: list[bytes] = []
        size_bytes = 0
        while size_bytes < _MAX_BYTES:
            more = await self._next_of_large() or await self._next_rendered()
            if more is None:
                return rows, True
            if more:
                largest_bytes = max(map(len, more))
                self._check_size(largest_bytes)
                self._largest_bytes = max(self._largest_bytes, largest_bytes)
                size_bytes += largest_bytes * len(more)
                rows += more
        return rows, False

    async def _next_rendered(self) -> list[bytes] | None:
        """Returns the encoded rows of the next result, or None at the end of the FETCH."""
        connection = self._connection
        result = await connection.fetch()
        if result is None:
            return []
        if result.status == _FATAL_ERROR:
            with suppress(ServiceError):
                # The FETCHes behind it in the pipeline fail because this one did.
                await drain(connection)
            raise error_from_result(result)
        if result.status == _PIPELINE_SYNC:
            return None
        if self._renderer is None:
            await self._choose_rendering(result, None)
            widest_bytes = widest_row_bytes(result)
            if widest_bytes is not None and widest_bytes <= _LARGE_ROW_BYTES:
                self._fetch_chunk_rows = _BOUNDED_CHUNK_ROWS
        if not result.ntuples or self._renderer is None:
            return []
        if connection.taken_bytes > _MAX_BYTES and result.ntuples > 1:
            self._large, self._rendered = result, 0
            return []
        return await self._encoded(result, self._renderer)

    async def _next_of_large(self) -> list[bytes]:
        """Returns the next row of a result with large rows: one at a time, because encoding makes them larger."""
        if self._large is None or self._renderer is None:
            return []
        row = self._rendered
        if self._connection.taken_bytes > LONG_BYTES:
            whose = self._connection.organization_id
            rendered = await self._renderer.render_long(whose, self._large, row, row + 1)
        else:
            rendered = self._renderer.render_some(self._large, row, row + 1)
        self._rendered = row + 1
        if self._rendered == self._large.ntuples:
            self._large = None
        return rendered

    def _check_size(self, row_bytes: int) -> None:
        if row_bytes > self._connection.max_result_bytes:
            # The rest of the exchange is useless.
            self._connection.close()
            raise ResultTooLarge

    def _end_fetch(self, asked: int) -> None:
        self._is_over = self._got < asked or (self._left == 0 and not self._asked)
        if self._waited_s > _LATE_S:
            self._size = 1
        elif self._waited_s < _PROMPT_S:
            self._size = max(1, min(self._size * 2, self._count // _GROWTH, _MAX_ROWS))
        if self._got:
            self._row_bytes = self._largest_bytes
            self._size = max(1, min(self._size, _MAX_BYTES // max(1, self._row_bytes)))
        self._got, self._largest_bytes, self._waited_s = 0, 0, 0.0


def is_refused_write(error: Exception) -> bool:
    """Whether PostgreSQL refused a write in a read-only transaction."""
    return isinstance(error, StatementError) and error.diagnosis.sqlstate == _WRITES_IN_READ_ONLY
