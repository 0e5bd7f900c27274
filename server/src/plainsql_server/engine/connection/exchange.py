"""Helpers for one exchange: queue the service's commands, read every result up to the last sync, raise what failed.

    connection.send_query(b"commit")
    connection.sync()
    await drain(connection)

An exchange is everything up to its sync. These helpers read it to its end even after an error, so that the connection
can be used again.
"""

from collections.abc import Sequence
from typing import NoReturn

from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from plainsql_server.core.errors import EngineError, InternalError, Outcome
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.session_state import SessionState
from plainsql_server.engine.connection.sqlstate import connection_lost, error_from_result

DISCARD_SEQUENCES = b"discard sequences"
_FATAL_ERROR = int(ExecStatus.FATAL_ERROR)


def queue_discard_sequences(connection: Connection, session_state: SessionState) -> int:
    """Queues DISCARD SEQUENCES and its sync if a previous request left that to do, and this one cannot do without.

    `session_state` is what the request may leave behind itself. Returns the number of pipeline steps queued: 2 or 0.
    """
    if not connection.must_discard_before(session_state):
        return 0
    connection.send_query(DISCARD_SEQUENCES)
    connection.sync()
    connection.must_discard_sequences = False
    return 2


async def drain(connection: Connection) -> bytes:
    """Reads and drops all results until every sync is answered. Returns the last command tag.

    Raises the first error, after reading the rest.
    """
    tag = b""
    while connection.syncs_due:
        result = await connection.fetch()
        if result is None:
            continue
        if result.status == _FATAL_ERROR:
            await fail(connection, result)
        tag = result.command_status or tag
    return tag


async def drain_commit(connection: Connection) -> None:
    """Like `drain`, while a COMMIT is in flight: if the server fails now, the outcome is unknown."""
    try:
        tag = await drain(connection)
    except EngineError as error:
        raise connection_lost(error.internal_context or "") from error
    if tag == b"ROLLBACK":
        # PostgreSQL's answer to the COMMIT of a transaction that has failed; not an error.
        rolled_back = InternalError("COMMIT rolled back")
        rolled_back.outcome = Outcome.ROLLED_BACK
        raise rolled_back


async def read_row_count(connection: Connection) -> int:
    """Like `drain`, and returns the number of rows read."""
    count = 0
    while connection.syncs_due:
        result = await connection.fetch()
        if result is None:
            continue
        if result.status == _FATAL_ERROR:
            await fail(connection, result)
        count += result.ntuples
    return count


async def run_command(connection: Connection, sql: bytes) -> None:
    """Runs one service command as an exchange of its own. Raises its error."""
    connection.send_query(sql)
    connection.sync()
    await drain(connection)


async def close_prepared(connection: Connection, names: Sequence[bytes]) -> None:
    """Closes prepared statements in the backend."""
    for name in names:
        connection.send_close_prepared(name)
    if names:
        connection.sync()
        await drain(connection)


async def fail(connection: Connection, result: PGresult) -> NoReturn:
    """Reads the exchange to its end, then raises the error of this result."""
    # After an ERROR, PostgreSQL still answers the sync. After a FATAL error it closes the connection instead.
    try:
        while connection.syncs_due:
            await connection.fetch()
    except EngineError as lost:
        raise error_from_result(result) from lost
    raise error_from_result(result)
