"""Opens connections to PostgreSQL without holding up the event loop.

    pgconn = await connected(conninfo, timeout_s)

libpq connects in steps that never wait, but those of a TLS handshake take milliseconds of processor time: it reads the
certificates and keys, then it computes. These steps run in a thread of the loop's executor, the others in the loop.
"""

import asyncio
import select
import threading

from psycopg import pq
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from plainsql_server.core.errors import without_detail
from plainsql_server.core.sockets import wait_for_socket
from plainsql_server.engine.connection.sqlstate import engine_unavailable
from plainsql_server.engine.connection.unlocked import unlocked

# How long a thread waits for the server's part of a handshake before it leaves the wait to the loop. A server near by
# takes 5 ms. To hand over each step took 0.9 ms of processor time more; longer waits would hold threads for servers
# that do not answer.
_STAY_MS = 20
CONNECTING_TIMED_OUT = "connecting timed out"


async def connected(conninfo: bytes, timeout_s: float) -> PGconn:
    """Connects and enters pipeline mode. Raises EngineError on failure or timeout; cancelling closes the socket."""
    pgconn = pq.PGconn.connect_start(conninfo)
    try:
        async with asyncio.timeout(timeout_s):
            await _finish_connecting(pgconn)
    except TimeoutError:
        pgconn.finish()
        raise engine_unavailable(CONNECTING_TIMED_OUT) from None
    except BaseException:
        pgconn.finish()
        raise
    pgconn.nonblocking = 1
    pgconn.enter_pipeline_mode()
    return pgconn


async def _finish_connecting(pgconn: PGconn) -> None:
    """Waits until the connection is open. Raises EngineError if it fails.

    A cancelled call returns when libpq no longer uses the connection, so that the caller can close it.
    """
    while True:
        before = pgconn.status
        if before == ConnStatus.BAD:
            raise engine_unavailable(without_detail(pgconn.get_error_message()))
        is_handshake = before == ConnStatus.SSL_STARTUP
        status = await _poll_in_thread(pgconn) if is_handshake else pgconn.connect_poll()
        if status == PollingStatus.OK:
            return
        if status == PollingStatus.FAILED:
            raise engine_unavailable(without_detail(pgconn.get_error_message()))
        await wait_for_socket(pgconn.socket, write=status == PollingStatus.WRITING)


async def _poll_in_thread(pgconn: PGconn) -> int:
    given_up = threading.Event()
    step = asyncio.get_running_loop().run_in_executor(None, _poll, pgconn, given_up)
    cancelled: asyncio.CancelledError | None = None
    while not step.done():
        try:
            # Other than `await step`, this leaves the step alone when it is cancelled itself.
            await asyncio.wait([step])
        except asyncio.CancelledError as error:
            # The caller closes the connection now, and the thread still uses it.
            cancelled = error
            given_up.set()
    if cancelled is not None:
        raise cancelled
    return step.result()


def _poll(pgconn: PGconn, given_up: threading.Event) -> int:
    """Goes on until the handshake is over, or the server lets us wait, or there is no need any more."""
    while not given_up.is_set():
        status = _connect_poll(pgconn)
        is_waiting = status in (PollingStatus.READING, PollingStatus.WRITING)
        if not is_waiting or pgconn.status != ConnStatus.SSL_STARTUP:
            return status
        ready = select.poll()
        ready.register(pgconn.socket, select.POLLOUT if status == PollingStatus.WRITING else select.POLLIN)
        if not ready.poll(_STAY_MS):
            return status
    return PollingStatus.FAILED


_connect_poll = unlocked("PQconnectPoll") or (lambda pgconn: pgconn.connect_poll())
