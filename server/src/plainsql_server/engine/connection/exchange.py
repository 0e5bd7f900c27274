"""One exchange with the engine: queue commands of the service, read the results to the end, raise what failed.

connection.send_query(b"commit")
connection.sync()
await drain(connection)
"""

from collections.abc import Sequence
from typing import NoReturn

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import EngineError
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.sqlstate import connection_lost, error_from_result

DISCARD_SEQUENCES = b"discard sequences"
_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)


def queue_discard_sequences(connection: Connection) -> int:
    """Queues what the request before left to be undone, and says how many steps that were: a command and its sync."""
    if not connection.must_discard_sequences:
        return 0
    connection.send_query(DISCARD_SEQUENCES)
    connection.sync()
    connection.must_discard_sequences = False
    return 2


async def drain(connection: Connection) -> None:
    """Reads the exchange to its end. Raises the first error on the way, after having read everything."""
    while connection.syncs_due:
        if not connection.is_ready:
            await connection.arrival()
        result = connection.take()
        if result is not None and result.status == _FATAL_ERROR:
            await fail(connection, result)


async def drain_commit(connection: Connection) -> None:
    """Like `drain`, where the engine is committing: if it goes away now, nobody knows whether it has."""
    try:
        await drain(connection)
    except EngineError as error:
        raise connection_lost(error.internal_context or "") from error


async def read_row_count(connection: Connection) -> int:
    """Like `drain`, and says how many rows there were."""
    count = 0
    while connection.syncs_due:
        if not connection.is_ready:
            await connection.arrival()
        result = connection.take()
        if result is None:
            continue
        if result.status == _FATAL_ERROR:
            await fail(connection, result)
        count += result.ntuples
    return count


async def run_command(connection: Connection, sql: bytes) -> None:
    """Runs one of our own commands and reads it to its end."""
    connection.send_query(sql)
    connection.sync()
    await drain(connection)


async def close_prepared(connection: Connection, names: Sequence[bytes]) -> None:
    """Forgets prepared statements on the engine."""
    for name in names:
        connection.send_close_prepared(name)
    if names:
        connection.sync()
        await drain(connection)


async def fail(connection: Connection, result: PGresult) -> NoReturn:
    """Raises the error that a result stands for, after having read the exchange to its end."""
    # The answer of `sync` follows an error; after a fatal one the engine hangs up instead.
    try:
        while connection.syncs_due:
            await connection.fetch()
    except EngineError as lost:
        raise error_from_result(result) from lost
    raise error_from_result(result)
