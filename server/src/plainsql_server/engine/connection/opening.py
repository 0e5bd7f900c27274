"""Finishes what `PGconn.connect_start` began, without holding up the event loop.

    pgconn = pq.PGconn.connect_start(conninfo)
    await finish_connecting(pgconn)

libpq connects in steps that never wait, but those of a TLS handshake take milliseconds of processor time: it reads the
certificates and keys, then it computes. These steps run in a thread of the loop's executor, the others in the loop.
"""

import asyncio
import ctypes
import select
import sys
import threading
from collections.abc import Callable

from psycopg import pq
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from plainsql_server.core.errors import without_detail
from plainsql_server.engine.connection.sqlstate import engine_unavailable

# How long a thread waits for the server's part of a handshake before it leaves the wait to the loop. A server near by
# takes 5 ms. To hand over each step took 0.9 ms of processor time more; longer waits would hold threads for servers
# that do not answer.
_STAY_MS = 20


async def finish_connecting(pgconn: PGconn) -> None:
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


async def wait_for_socket(socket: int, *, write: bool) -> None:
    """Waits until one of libpq's sockets is readable or writable."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(socket, on_ready)
    try:
        await ready
    finally:
        remove(socket)


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


def _without_lock() -> Callable[[PGconn], int]:
    """PQconnectPoll without the interpreter's lock, which psycopg's compiled `connect_poll` holds in any thread."""
    if pq.__impl__ == "python":
        return lambda pgconn: pgconn.connect_poll()
    # A function of ctypes releases the lock. The notice receiver, which libpq may call meanwhile, takes it again.
    function = ctypes.CDLL(sys.modules[pq.PGconn.__module__].__file__).PQconnectPoll
    function.argtypes = [ctypes.c_void_p]
    function.restype = ctypes.c_int
    # psycopg's protocol of a connection does not name the pointer, but its classes have it.
    return lambda pgconn: int(function(pgconn.pgconn_ptr))  # type: ignore[attr-defined]


_connect_poll = _without_lock()
