"""A query that only reads, its rows given as the engine makes them.

Owns two things. The transaction: read-only, on a safe snapshot, which is waited for a little (decision 0009).
And the pace. The engine keeps the rows of an ordinary statement back until it has eight kilobytes of them, so
a query that makes one row a second would show nothing for minutes; what a FETCH from a cursor has found it
sends at once. So rows are fetched one by one at first, more each time while they come promptly, and one by one
again when they don't. Two FETCHes are always under way, so that the engine never waits for us. And how many
bytes of rows are in memory at once: some rows, or one large one.
"""

import re
import time
from collections import deque
from contextlib import suppress

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError, ServiceError, StatementError
from plainsql_server.core.result import Completion
from plainsql_server.core.statement import Statement
from plainsql_server.engine.connection.catalog import Catalog
from plainsql_server.engine.connection.connection import Connection, ResultTooLarge
from plainsql_server.engine.connection.exchange import drain
from plainsql_server.engine.connection.sqlstate import error_from_result
from plainsql_server.engine.encoding.shapes import Encoding
from plainsql_server.engine.encoding.widths import widest_row_bytes
from plainsql_server.engine.execution.execution import (
    CHANGED_MODE,
    NOTHING_DEFERRED,
    STILL_READ_ONLY,
    STILL_SERIALIZABLE,
    ResultStream,
    Run,
    changed_mode,
)

_CURSOR = b"plainsql_stream"
_DECLARE = f"declare {_CURSOR.decode()} no scroll cursor for "
_UNDER_WAY = 2
# Of as many rows as have come so far, the next FETCH asks for this fraction at most, so that when a query that was
# fast becomes slow, few of its rows are late.
_GROWTH = 16
# Larger FETCHes are hardly faster (measured for decision 0009).
_MAX_ROWS = 256
# As much as waits for a slow client elsewhere, too.
_MAX_BYTES = 64 * 1024
# Rows that libpq gives at once. Few, because rows that were small can become large, and libpq holds that many then;
# more where their types say that they cannot.
_CHUNK_ROWS = 8
_BOUNDED_CHUNK_ROWS = 32
# Rows above this size are taken from libpq one by one, so that few of them are in memory at once.
_LARGE_ROW_BYTES = 4 * 1024
# What came within the first is prompt. What took longer than the second would be late if it were more.
_PROMPT_S = 0.005
_LATE_S = 0.02

_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)
_PIPELINE_SYNC = int(ExecStatus.PIPELINE_SYNC)
_QUERY_CANCELED = "57014"
_WRITES_IN_READ_ONLY = "25006"
# What PostgreSQL allows in a read-only transaction though it takes a transaction ID, which `close` refuses.
_WRITES_ALL_THE_SAME = re.compile(r"\b(?:lo_\w+|txid_current|pg_current_xact_id)\s*\(", re.IGNORECASE)


class NoSafeSnapshot(Exception):
    """The engine had no safe snapshot in time. The transaction has failed and must be rolled back."""


class ReadStream(ResultStream):
    """The rows of one query, `max_rows` of them and one more if there are as many; None means all.

    `open`, then `next_rows` until None, then `close`. Any of them may raise; then, as when one is cancelled,
    the connection is in a transaction, or in the middle of an exchange.
    """

    def __init__(
        self, connection: Connection, catalog: Catalog, encoding: Encoding, max_rows: int | None, budget_ms: int = 0
    ) -> None:
        # libpq takes no number of rows for what is skipped because something before it failed; DECLARE has none.
        super().__init__(connection, catalog, Run(encoding, chunk_rows=0))
        self._budget_ms = budget_ms
        self._left = None if max_rows is None else max_rows + 1
        self._size = 1
        self._count = 0
        # The sizes of the FETCHes under way; and of the first of them, what was read of it until now.
        self._asked: deque[int] = deque()
        self._got = 0
        self._largest_bytes = 0
        self._waited_s = 0.0
        # How large rows were of late, and how many of them libpq may give at once.
        self._row_bytes = 0
        self._chunk_rows = _CHUNK_ROWS
        # A result whose rows are large, and how many of them were rendered.
        self._large: PGresult | None = None
        self._rendered = 0
        self._first: list[bytes] | None = None
        self._is_over = False

    async def open(self, statement: Statement) -> None:
        """Begins the transaction and the query in it, of which nothing is computed yet.

        Raises what the engine says to the text, where positions are not those of the caller's.
        """
        if _WRITES_ALL_THE_SAME.search(statement.sql):
            raise RequestError("transaction_control", "The statement calls a function that takes a transaction ID.")
        await self.start(Statement(_DECLARE + statement.sql, statement.params))
        self._pending = None
        await drain(self._connection)

    async def begin(self) -> None:
        """Waits for the first row, or for there being none; the shape is known then."""
        self._first = await self._fetched()

    async def next_rows(self) -> list[bytes] | None:
        """The next rows, at least one, or None at the end."""
        rows, self._first = self._first, None
        while not rows:
            if self._is_over:
                return None
            rows = await self._fetched()
        return rows

    async def close(self) -> Completion:
        """Ends the transaction. Raises RequestError if it wrote all the same; then nothing of it is kept."""
        connection = self._connection
        await drain(connection)
        # What is deferred must come before the guards.
        for command in (NOTHING_DEFERRED, STILL_SERIALIZABLE, STILL_READ_ONLY, b"commit"):
            connection.send_query(command)
        connection.sync()
        try:
            await drain(connection)
        except StatementError as error:
            if error.diagnosis.sqlstate in CHANGED_MODE:
                raise changed_mode() from error
            raise
        return Completion("SELECT", 0, monotonic_us() - self._started_us)

    def _send_preamble(self) -> int:
        connection = self._connection
        steps = super()._send_preamble()
        commands = [
            b"begin isolation level serializable read only",
            # The whole result is wanted, not just its beginning, so that the plan should be the ordinary one.
            b"set local cursor_tuple_fraction = 1",
        ]
        if self._budget_ms:
            # The snapshot is waited for by a statement of its own, so that the engine itself ends the waiting, and
            # a cancel from outside is not needed.
            commands[0] += b", deferrable"
            commands += [
                b"set local statement_timeout = %d" % self._budget_ms,
                b"select",
                b"set local statement_timeout = 0",
            ]
        for command in commands:
            connection.send_query(command)
        return steps + len(commands)

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
        chunk_rows = 1 if self._row_bytes > _LARGE_ROW_BYTES else min(size, self._chunk_rows)
        self._connection.make_way()
        self._connection.send_query(b"fetch %d from %b" % (size, _CURSOR), chunk_rows)
        self._connection.sync()
        self._asked.append(size)
        return True

    async def _fetched(self) -> list[bytes]:
        """The next rows of the FETCH under way; none if that was all of it."""
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
        """Rows until they are many bytes, and whether the FETCH ends with them."""
        rows: list[bytes] = []
        size_bytes = 0
        while size_bytes < _MAX_BYTES:
            more = self._next_of_large() or await self._next_rendered()
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
        """The rows of the next result, or None at the end of the FETCH."""
        connection = self._connection
        if not connection.is_ready:
            await connection.arrival()
        result = connection.take()
        if result is None:
            return []
        if result.status == _FATAL_ERROR:
            with suppress(ServiceError):
                # Those that are under way fail because this one did.
                await drain(connection)
            raise error_from_result(result)
        if result.status == _PIPELINE_SYNC:
            return None
        if self._renderer is None:
            await self._choose_rendering(result, None)
            widest_bytes = widest_row_bytes(result)
            if widest_bytes is not None and widest_bytes <= _LARGE_ROW_BYTES:
                self._chunk_rows = _BOUNDED_CHUNK_ROWS
        if not result.ntuples or self._renderer is None:
            return []
        if connection.taken_bytes > _MAX_BYTES and result.ntuples > 1:
            self._large, self._rendered = result, 0
            return []
        return self._renderer.render(result)

    def _next_of_large(self) -> list[bytes]:
        """The next row of a result whose rows are large, which are rendered one by one: they grow by it."""
        if self._large is None or self._renderer is None:
            return []
        row = self._rendered
        rendered = self._renderer.render_some(self._large, row, row + 1)
        self._rendered = row + 1
        if self._rendered == self._large.ntuples:
            self._large = None
        return rendered

    def _check_size(self, row_bytes: int) -> None:
        if row_bytes > self._connection.max_result_bytes:
            # The rest of the exchange is of no use to anybody.
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
    """Whether the engine refused to write in a read-only transaction."""
    return isinstance(error, StatementError) and error.diagnosis.sqlstate == _WRITES_IN_READ_ONLY
