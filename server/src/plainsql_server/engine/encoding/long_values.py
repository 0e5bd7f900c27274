"""Values of a result where libpq keeps them, without a copy.

    value_at = views(result)
    value = value_at(row, column)

psycopg copies a value while it holds the interpreter's lock: tens of milliseconds for tens of megabytes, during which
no other request runs. Don't use a view after its result is gone.
"""

import ctypes
import sys
from collections.abc import Callable

from psycopg import pq
from psycopg.pq.abc import PGresult

View = Callable[[int, int], memoryview | None]

_EMPTY = memoryview(b"")
# Arrays of ctypes would do, too, but each length is a type of its own, which takes 20 times as long to make.
_READ_ONLY = 0x100
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view.restype = ctypes.py_object


def views(result: PGresult) -> View:
    """The function that returns a value of this result; None for a null."""
    # psycopg's implementation in Python is for machines without the compiled one, and has other pointers.
    return _copies(result) if pq.__impl__ == "python" else _views(result)


def _copies(result: PGresult) -> View:
    def value_at(row: int, column: int) -> memoryview | None:
        value = result.get_value(row, column)
        return None if value is None else memoryview(value)

    return value_at


def _views(result: PGresult) -> View:
    # psycopg's protocol of a result does not name the pointer, but its classes have it.
    pointer = result.pgresult_ptr  # type: ignore[attr-defined]

    def value_at(row: int, column: int) -> memoryview | None:
        length = _length(pointer, row, column)
        if not length:
            return None if _is_null(pointer, row, column) else _EMPTY
        view: memoryview = _view(_value(pointer, row, column), length, _READ_ONLY)
        return view

    return value_at


def _function(name: str, returns: type) -> Callable[[int | None, int, int], int]:
    # libpq is linked to psycopg's compiled module.
    function = getattr(ctypes.CDLL(sys.modules[pq.PGresult.__module__].__file__), name)
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    function.restype = returns
    return function  # type: ignore[no-any-return]


if pq.__impl__ != "python":
    _value = _function("PQgetvalue", ctypes.c_void_p)
    _length = _function("PQgetlength", ctypes.c_int)
    _is_null = _function("PQgetisnull", ctypes.c_int)
