"""Reads a long result on a thread: what the server has sent goes through the valve to libpq, which parses it there.

    is_ready = await run(PARSING, organization_id, read_on, pgconn, valve, inbox, max_bytes)

libpq copies each row when all of it has arrived: tens of milliseconds for tens of megabytes, during which no other
request of the process would run. Nothing else may use the connection meanwhile; `connection.py` sees to that.
"""

import select

from psycopg import Error as DriverError
from psycopg.pq.abc import PGconn

from plainsql_server.engine.connection.unlocked import unlocked
from plainsql_server.engine.connection.valve import Valve

# How much is read before another connection's result. Each job costs a tenth of a millisecond.
_AT_ONCE_BYTES = 1024 * 1024


def read_on(pgconn: PGconn, valve: Valve, inbox: "select.poll", max_bytes: int) -> bool:
    """Reads what has arrived, up to a megabyte. `inbox` polls libpq's end of the valve.

    Returns whether there is nothing to wait for: a result is complete, the result is larger than `max_bytes`, or the
    connection is broken.
    """
    enough_bytes = valve.passed_bytes + _AT_ONCE_BYTES
    while valve.passed_bytes < enough_bytes:
        # libpq reads only as much as its buffer has space for, so an earlier chunk may not be read to its end.
        if not inbox.poll(0) and not valve.pass_on():
            return False
        if not _consume_input(pgconn) or not _is_busy(pgconn) or valve.passed_bytes > max_bytes:
            return True
    return False


def _consume(pgconn: PGconn) -> int:
    try:
        pgconn.consume_input()
    except DriverError:
        # The connection's status is bad now; the task that waits for the result raises the error.
        return 0
    return 1


_consume_input = unlocked("PQconsumeInput") or _consume
_is_busy = unlocked("PQisBusy") or (lambda pgconn: pgconn.is_busy())
