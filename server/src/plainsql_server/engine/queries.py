"""Our own small questions to the engine, on a connection that lives for one of them.

Owns nothing but the asking. Used where a pooled connection is busy or not to be trusted.
"""

from psycopg.pq import ExecStatus

from plainsql_server.core.errors import InternalError
from plainsql_server.engine.connection import Connection
from plainsql_server.engine.sqlstate import error_from_result


async def query_values(conninfo: bytes, sql: str, parameter: bytes, timeout_s: float) -> list[list[str]]:
    """Connects, asks with one parameter, returns the rows as text (NULL as ''), and closes."""
    connection = await Connection.open(conninfo, timeout_s)
    try:
        return await _ask(connection, sql, parameter)
    finally:
        connection.close()


async def _ask(connection: Connection, sql: str, parameter: bytes) -> list[list[str]]:
    connection.send_prepare(b"", sql.encode())
    connection.send_prepared(b"", [parameter])
    connection.sync()
    rows: list[list[str]] = []
    while connection.syncs_due:
        result = await connection.fetch()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            error = error_from_result(result)
            raise InternalError(f"our own query failed: {error.diagnosis.sqlstate} {error.message}")
        if result is not None:
            rows += [
                [(result.get_value(row, column) or b"").decode() for column in range(result.nfields)]
                for row in range(result.ntuples)
            ]
    return rows
