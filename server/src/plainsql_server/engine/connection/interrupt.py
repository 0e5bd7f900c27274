"""Ending what a connection runs, from outside: ask, then insist.

Owns the escalation, and whether the connection can be used again. A tenant can trap a cancel in PL/pgSQL or reset its
own statement_timeout, so only `pg_terminate_backend` from another connection is sure. It needs no superuser: a role may
end its own.

A commit that waits for a standby is neither cancelled nor ended. PostgreSQL would stop to wait, show it to everybody,
and lose it if another server took over: others would have read what never was. It is left to itself, and the caller is
told that the outcome is unknown.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from psycopg import Error as DriverError
from psycopg.pq import PollingStatus

from plainsql_server.core.errors import ServiceError
from plainsql_server.engine.connection.connection import Connection, wait_for_socket
from plainsql_server.engine.connection.queries import query_values
from plainsql_server.engine.connection.sqlstate import engine_away

# Of a row of pg_stat_activity: its backend does not wait for a standby.
AWAITS_NO_STANDBY = "wait_event IS DISTINCT FROM 'SyncRep'"
# Nor does it write the log, as who commits does before that: what is told to stop meanwhile would not wait then.
_COMMITS_NOTHING = "coalesce(wait_event, '') NOT IN ('SyncRep', 'WALSync', 'WALWrite')"
# How long an ordinary statement takes to notice a cancel, with a wide margin; only traps take longer.
CANCEL_GRACE_S = 0.3
# The other connection's opening and the engine's own check for interrupts. Both graces together stay below the
# second that a statement may outlive its limit by, even where the engine says nothing at all.
TERMINATE_GRACE_S = 0.6


# What ignores even that is asked for this often, until it is gone.
_LOOK_EVERY_S = 1.0
_LOOK_TIMEOUT_S = 10.0
_LIVES = (
    "select 1 from pg_catalog.pg_stat_activity"
    " where pid operator(pg_catalog.=) $1 and usename operator(pg_catalog.=) current_user"
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a statement was ended."""

    is_clean: bool = False
    """Whether no signal is on its way to the backend any more, so that it can serve another request."""
    runs_on_pid: int = 0
    """The process id of a backend that seems to run on, or 0."""


async def interrupt(connection: Connection, conninfo: bytes, *, has_replicas: bool = False) -> Ending:
    """Ends the connection's statement. Returns when its results were read, or closes the connection.

    `conninfo` leads to the very server of the connection. Raises nothing: whoever reads the results sees the engine's
    error or a lost connection.
    """
    backend_pid = connection.backend_pid
    condition = _COMMITS_NOTHING if has_replicas else "true"
    cancel = _end("cancel", backend_pid, conninfo, condition) if has_replicas else _cancel(connection)
    if await _settles(connection, cancel, CANCEL_GRACE_S):
        # The engine says that it has cancelled after it has sent the signal. A process takes its signals before what it
        # reads afterwards, and one that comes to a backend at rest is forgotten: none can meet a later statement.
        return Ending(is_clean=connection.is_open)
    if await _settles(connection, _end("terminate", backend_pid, conninfo, condition), TERMINATE_GRACE_S):
        return Ending()
    connection.close()
    return Ending(runs_on_pid=backend_pid)


async def gone(backend_pid: int, conninfo: bytes) -> None:
    """Waits until a backend is gone, or nobody can tell.

    Some code of PostgreSQL's looks for no interrupt while it works, XPath above all: it can go on for hours, and
    nothing but a crash of the whole cell would end it.
    """
    try:
        while True:
            if not await query_values(conninfo, _LIVES, b"%d" % backend_pid, _LOOK_TIMEOUT_S):
                return
            await asyncio.sleep(_LOOK_EVERY_S)
    except (ServiceError, DriverError):
        # The engine is away, and what it ran with it; or the role has as many connections as it may have.
        return


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
    """Returns when the engine has closed the connection that it was asked on, as it does when it has done so."""
    request = connection.pgconn.cancel_conn()
    request.start()
    try:
        while (status := request.poll()) not in (PollingStatus.OK, PollingStatus.FAILED):
            await wait_for_socket(request.socket, write=status == PollingStatus.WRITING)
        if status is PollingStatus.FAILED:
            raise engine_away(request.get_error_message())
    finally:
        request.finish()


async def _end(how: str, backend_pid: int, conninfo: bytes, condition: str) -> None:
    question = (
        f"SELECT pg_catalog.pg_{how}_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND {condition}"
    )
    await query_values(conninfo, question, b"%d" % backend_pid, TERMINATE_GRACE_S)
