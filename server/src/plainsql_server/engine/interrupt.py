"""Ending what a connection runs, from outside: ask, then insist.

Owns the escalation. A tenant can trap a cancel in PL/pgSQL or reset its own statement_timeout, so only
`pg_terminate_backend` from another connection is sure. It needs no superuser: a role may end its own.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from psycopg import Error as DriverError
from psycopg.pq import PollingStatus

from plainsql_server.core.errors import ServiceError
from plainsql_server.engine.connection import Connection, wait_for_socket
from plainsql_server.engine.queries import query_values

# How long an ordinary statement takes to notice a cancel, with a wide margin; only traps take longer.
CANCEL_GRACE_S = 0.3
# The other connection's opening and the engine's own check for interrupts. Both graces together stay below the
# second that a statement may outlive its limit by, even where the engine says nothing at all.
TERMINATE_GRACE_S = 0.6


async def interrupt(connection: Connection, conninfo: bytes) -> None:
    """Ends the connection's statement. Returns when its results can be read, or closes the connection.

    Raises nothing: whoever reads the results sees the engine's error or a lost connection.
    """
    if await _settles(connection, _cancel(connection), CANCEL_GRACE_S):
        return
    if await _settles(connection, _terminate(connection.backend_pid, conninfo), TERMINATE_GRACE_S):
        return
    connection.close()


async def _settles(connection: Connection, attempt: Coroutine[Any, Any, None], grace_s: float) -> bool:
    try:
        async with asyncio.timeout(grace_s):
            await attempt
            await connection.settled()
    except (TimeoutError, ServiceError, DriverError):
        # The engine cannot be reached, or its answer is no use: the next step, or closing, must follow all the same.
        return False
    return True


async def _cancel(connection: Connection) -> None:
    request = connection.pgconn.cancel_conn()
    request.start()
    try:
        while (status := request.poll()) not in (PollingStatus.OK, PollingStatus.FAILED):
            await wait_for_socket(request.socket, write=status == PollingStatus.WRITING)
    finally:
        request.finish()


async def _terminate(backend_pid: int, conninfo: bytes) -> None:
    await query_values(conninfo, "select pg_catalog.pg_terminate_backend($1)", b"%d" % backend_pid, TERMINATE_GRACE_S)
