"""Stops what a connection's backend is running: a cancel request first, then pg_terminate_backend.

    ending = await interrupt(connection, conninfo)

`Ending` says whether the connection can be used again. A tenant can trap a cancel in PL/pgSQL or reset its own
statement_timeout, so only `pg_terminate_backend`, called on a second connection, is reliable. That takes no superuser:
a role may terminate its own backends.

A commit that waits for a synchronous standby is neither cancelled nor terminated. PostgreSQL would stop waiting and
make the commit visible, and a failover would then lose it: other clients would have read data that never existed. Such
a commit is left to finish on its own, and the caller gets an unknown outcome.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from psycopg import Error as DriverError
from psycopg.pq import PollingStatus

from plainsql_server.core.errors import ServiceError
from plainsql_server.core.sockets import wait_for_socket
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.connection.queries import query_values
from plainsql_server.engine.connection.sqlstate import engine_unavailable

# A condition on pg_stat_activity: the backend does not wait for a synchronous standby.
AWAITS_NO_STANDBY = "wait_event IS DISTINCT FROM 'SyncRep'"
# Nor does it write or flush WAL, as a commit does just before that wait: a signal that arrives then would make the
# commit skip the wait.
_COMMITS_NOTHING = "coalesce(wait_event, '') NOT IN ('SyncRep', 'WALSync', 'WALWrite')"
# How long an ordinary statement takes to react to a cancel request, with a wide margin. Only code that traps the cancel
# takes longer.
CANCEL_GRACE_S = 0.3
# Time to open the second connection, and for the backend to reach its next check for interrupts. Both graces together
# stay below the one second by which a statement may exceed its deadline, even if the server does not answer at all.
TERMINATE_GRACE_S = 0.6


# How often to check whether a backend that ignores termination has exited.
_LOOK_EVERY_S = 1.0
_LOOK_TIMEOUT_S = 10.0
# How libpq begins its texts about failed attempts to connect.
_CONNECTING_FAILED = "connection to server "
# `$1` is the process id and the role, with a blank between them.
_LIVES = (
    "select 1 from pg_catalog.pg_stat_activity"
    " where pid operator(pg_catalog.=) pg_catalog.split_part($1, ' ', 1)::pg_catalog.int4"
    " and usename operator(pg_catalog.=) pg_catalog.split_part($1, ' ', 2)"
)


class InterruptReason(StrEnum):
    """Why a statement was cancelled or terminated before it completed. The texts are part of error messages."""

    DEADLINE = "its deadline passed"
    TOO_LARGE = "its result is too large"
    CUT_SHORT = "enough rows were read"
    GONE = "the request was abandoned"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a statement ended after an interrupt."""

    is_clean: bool = False
    """Whether no signal can still be on its way to the backend, so that it may serve another request."""
    runs_on_pid: int = 0
    """The process id of a backend that seems to be still running, or 0."""


async def interrupt(connection: Connection, conninfo: bytes, *, has_replicas: bool = False) -> Ending:
    """Stops the connection's statement. Returns once its results have been read; otherwise closes the connection.

    `conninfo` must lead to the same server as the connection. Raises nothing: the task that reads the results gets
    PostgreSQL's error or a lost connection.
    """
    backend_pid = connection.backend_pid
    condition = _COMMITS_NOTHING if has_replicas else "true"
    cancel = _end("cancel", backend_pid, conninfo, condition) if has_replicas else _cancel(connection)
    if await _settles(connection, cancel, CANCEL_GRACE_S):
        # The server confirms a cancel only after it has sent the signal. A backend handles a pending signal before it
        # reads its next message, and an idle backend ignores a cancel: the signal cannot hit a later statement.
        return Ending(is_clean=connection.is_open)
    if await _settles(connection, _end("terminate", backend_pid, conninfo, condition), TERMINATE_GRACE_S):
        return Ending()
    connection.close()
    return Ending(runs_on_pid=backend_pid)


async def gone(backend_pid: int, role: str, conninfo: bytes, is_replaced: Callable[[], bool] = lambda: False) -> None:
    """Waits until a backend of a role has exited, until its server is down, or until another server replaces it.

    Some of PostgreSQL's code, XPath above all, does not check for interrupts while it works. It can run for hours, and
    only a crash of the whole server would stop it. `conninfo` must be that of the probe role: the tenant could
    terminate a connection of its own role, or drop its database. A server that answers late says nothing about the
    backend: it is asked again.
    """
    while not is_replaced():
        try:
            if not await query_values(conninfo, _LIVES, f"{backend_pid} {role}".encode(), _LOOK_TIMEOUT_S):
                return
        except DriverError:
            pass
        except ServiceError as error:
            if _says_down(error.internal_context or ""):
                return
        await asyncio.sleep(_LOOK_EVERY_S)


def _says_down(context: str) -> bool:
    """Whether a failed attempt to connect shows that the server is down, and with it all its backends."""
    # Only a running server answers with FATAL. Before it starts up and after it shuts down, it has no backends.
    is_refused = context.startswith(_CONNECTING_FAILED) and "FATAL" not in context
    return is_refused or "the database system is" in context


async def _settles(connection: Connection, attempt: Coroutine[Any, Any, None], grace_s: float) -> bool:
    try:
        async with asyncio.timeout(grace_s):
            await attempt
            await connection.settled()
    except (TimeoutError, ServiceError, DriverError):
        # The server cannot be reached, or its answer is useless: escalate, or close the connection, all the same.
        return False
    return True


async def _cancel(connection: Connection) -> None:
    """Sends a cancel request. Returns when the server has closed the request's connection: it has signaled by then."""
    request = connection.pgconn.cancel_conn()
    request.start()
    try:
        while (status := request.poll()) not in (PollingStatus.OK, PollingStatus.FAILED):
            await wait_for_socket(request.socket, write=status == PollingStatus.WRITING)
        if status is PollingStatus.FAILED:
            raise engine_unavailable(request.get_error_message())
    finally:
        request.finish()


async def _end(how: str, backend_pid: int, conninfo: bytes, condition: str) -> None:
    question = (
        f"SELECT pg_catalog.pg_{how}_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND {condition}"
    )
    await query_values(conninfo, question, b"%d" % backend_pid, TERMINATE_GRACE_S)
