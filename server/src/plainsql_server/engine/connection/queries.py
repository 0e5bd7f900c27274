"""Small service queries, on a leased connection or on one opened for the query alone.

Use the latter where the pooled connection is busy or its session state cannot be trusted.
"""

import asyncio
from collections.abc import Sequence

from psycopg.pq import ExecStatus

from plainsql_server.core.errors import EngineError, InternalError
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.sqlstate import engine_unavailable, error_from_result


async def query_values(conninfo: bytes, sql: str, parameter: bytes, timeout_s: float) -> list[list[str]]:
    """Connects, runs the query with one parameter, closes, and returns the rows as text, with NULL as ''.

    Raises EngineError if the server is unavailable, or all of this takes longer than `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await values_and_close(await Connection.open(conninfo, timeout_s), sql, parameter)
    except TimeoutError:
        raise engine_unavailable("a service query had no answer in time") from None


async def values_and_close(connection: Connection, sql: str, parameter: bytes) -> list[list[str]]:
    """Like `query_values`, on a connection that was opened for this query."""
    try:
        rows = await ask(connection, sql.encode(), [parameter])
    finally:
        connection.close()
    return [[(value or b"").decode() for value in row] for row in rows]


async def ask(
    connection: Connection, sql: bytes, params: Sequence[bytes], *, begin: bytes | None = None
) -> list[list[bytes | None]]:
    """Runs a service query and returns its rows in text format. With `begin`, runs it in a transaction begun that way.

    Raises InternalError if the query fails, EngineError if the server is unavailable. The exchange is read to its end
    even then, and the connection may be in a failed transaction.
    """
    if begin is not None:
        connection.send_query(begin)
    connection.send_query(sql, 0, params)
    if begin is not None:
        connection.send_query(b"commit")
    connection.sync()
    rows: list[list[bytes | None]] = []
    failure: InternalError | EngineError | None = None
    while connection.syncs_due:
        result = await connection.fetch()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            error = error_from_result(result)
            refused = InternalError(f"a service query failed: {error.diagnosis.sqlstate} {error.message}")
            failure = failure or (error if isinstance(error, EngineError) else refused)
        if result is not None:
            rows += [
                [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
            ]
    if failure is not None:
        raise failure
    return rows
