"""A statement that only reads, its rows given as the engine makes them.

Owns two things. The transaction: on a safe snapshot, which is waited for a little (decision 0009). And the
taking of rows: libpq gives one row a result, so that none waits for the next, and all results that have
arrived are taken together, so that a fast engine costs few turns of the loop. (libpq could gather rows by
itself, but cannot change in the middle of a result how many, nor give out a chunk that is not full.)
"""

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import StatementError
from plainsql_server.engine.catalog import Catalog
from plainsql_server.engine.connection import Connection
from plainsql_server.engine.execution import ResultStream, Run
from plainsql_server.engine.rows import RowRenderer
from plainsql_server.engine.shapes import Encoding

_TUPLES_CHUNK = int(ExecStatus.TUPLES_CHUNK)
_QUERY_CANCELED = "57014"
_WRITES_IN_READ_ONLY = "25006"


class NoSafeSnapshot(Exception):
    """The engine had no safe snapshot in time. The transaction has failed and must be rolled back."""


class ReadStream(ResultStream):
    """The rows of a read-only statement. With a budget, on a safe snapshot or not at all."""

    def __init__(self, connection: Connection, catalog: Catalog, encoding: Encoding, budget_ms: int = 0) -> None:
        super().__init__(connection, catalog, Run(encoding, read_only=True, chunk_rows=1))
        self._budget_ms = budget_ms

    async def ready_rows(self) -> list[bytes] | None:
        """The next row and all that have arrived with it; None at the end."""
        rows = await self.next_batch()
        if rows is not None and self._renderer is not None:
            self._pending = _take_ready(self._connection, self._renderer, rows)
        return rows

    def _send_preamble(self) -> int:
        steps = super()._send_preamble()
        if self._budget_ms:
            # The snapshot is waited for by a statement of its own, so that the engine itself ends the waiting, and
            # a cancel, which would cost the connection, is not needed.
            for command in (
                b"set transaction deferrable",
                b"set local statement_timeout = %d" % self._budget_ms,
                b"select",
                b"set local statement_timeout = 0",
            ):
                self._connection.send_query(command)
                steps += 1
        return steps

    async def _skip_step(self) -> None:
        try:
            await super()._skip_step()
        except StatementError as error:
            if self._budget_ms and error.diagnosis.sqlstate == _QUERY_CANCELED:
                raise NoSafeSnapshot from error
            raise


def is_refused_write(error: Exception) -> bool:
    """Whether the engine refused to write in a read-only transaction."""
    return isinstance(error, StatementError) and error.diagnosis.sqlstate == _WRITES_IN_READ_ONLY


def _take_ready(connection: Connection, renderer: RowRenderer, rows: list[bytes]) -> PGresult | None:
    """Adds the rows that are there already. Returns the result after them, if that has come, too."""
    take = connection.take_ready
    render_row = renderer.render_row
    while (result := take()) is not None:
        if result.status != _TUPLES_CHUNK:
            return result
        rows.append(render_row(result, 0))
    return None
