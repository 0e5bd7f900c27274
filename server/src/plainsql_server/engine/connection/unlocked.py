"""Functions of libpq without the interpreter's lock, which psycopg's compiled methods hold in any thread.

    connect_poll = unlocked("PQconnectPoll") or (lambda pgconn: pgconn.connect_poll())

psycopg's implementation in Python calls libpq through ctypes, which releases the lock, so its methods will do.
"""

import ctypes
import sys
from collections.abc import Callable

from psycopg import pq
from psycopg.pq.abc import PGconn


def unlocked(name: str) -> Callable[[PGconn], int] | None:
    """A function that takes a connection and returns a number; None if psycopg's own method is as good."""
    if pq.__impl__ == "python":
        return None
    # A function of ctypes releases the lock. The notice receiver, which libpq may call meanwhile, takes it again.
    function = getattr(ctypes.CDLL(sys.modules[pq.PGconn.__module__].__file__), name)
    function.argtypes = [ctypes.c_void_p]
    function.restype = ctypes.c_int
    # psycopg's protocol of a connection does not name the pointer, but its classes have it.
    return lambda pgconn: int(function(pgconn.pgconn_ptr))  # type: ignore[attr-defined]
