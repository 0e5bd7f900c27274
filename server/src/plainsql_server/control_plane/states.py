"""The states of databases, keys and sessions, and which action leads from which to which: two tables.

Owns the tables. What is not in them cannot happen. `server/tests/control_plane/test_states.py` tries every pair
of a state and an action, and `docs/reference/control.md` shows the same tables to customers.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from plainsql_server.directory.cells import CellState
from plainsql_server.directory.databases import DatabaseState
from plainsql_server.directory.moves import MoveState


class DatabaseAction(StrEnum):
    """What can be done with a database. Finishing, failing and dropping are the service's own; suspending and
    resuming the operator's; the rest is its organization's."""

    FINISH = "finish"
    FAIL = "fail"
    RENAME = "rename"
    MAKE_DEFAULT = "make_default"
    SUSPEND = "suspend"
    RESUME = "resume"
    DELETE = "delete"
    RESTORE = "restore"
    DROP = "drop"


_S, _A = DatabaseState, DatabaseAction

# A database that is restored gets the state back that it had, so that deleting does not undo a suspension.
DATABASE_TRANSITIONS: Mapping[tuple[DatabaseState, DatabaseAction], frozenset[DatabaseState]] = MappingProxyType({
    (_S.CREATING, _A.FINISH): frozenset([_S.READY]),
    (_S.CREATING, _A.FAIL): frozenset([_S.FAILED]),
    (_S.CREATING, _A.DELETE): frozenset([_S.DELETING]),
    (_S.FAILED, _A.FINISH): frozenset([_S.READY]),
    (_S.FAILED, _A.FAIL): frozenset([_S.FAILED]),
    (_S.FAILED, _A.RENAME): frozenset([_S.FAILED]),
    (_S.FAILED, _A.DELETE): frozenset([_S.DELETING]),
    (_S.READY, _A.RENAME): frozenset([_S.READY]),
    (_S.READY, _A.MAKE_DEFAULT): frozenset([_S.READY]),
    (_S.READY, _A.SUSPEND): frozenset([_S.SUSPENDED]),
    (_S.READY, _A.DELETE): frozenset([_S.DELETING]),
    (_S.SUSPENDED, _A.RENAME): frozenset([_S.SUSPENDED]),
    (_S.SUSPENDED, _A.MAKE_DEFAULT): frozenset([_S.SUSPENDED]),
    (_S.SUSPENDED, _A.RESUME): frozenset([_S.READY]),
    (_S.SUSPENDED, _A.DELETE): frozenset([_S.DELETING]),
    (_S.DELETING, _A.RENAME): frozenset([_S.DELETING]),
    (_S.DELETING, _A.DELETE): frozenset([_S.DELETING]),
    (_S.DELETING, _A.RESTORE): frozenset([_S.READY, _S.SUSPENDED]),
    (_S.DELETING, _A.DROP): frozenset([_S.DELETED]),
})  # fmt: skip

# What a deletion may be undone from: nobody misses a database that never was ready.
RESTORABLE = frozenset([_S.READY, _S.SUSPENDED])


class CredentialState(StrEnum):
    """Whether a key or a session works. Revoking a key and destroying a session are the same to it: the end."""

    ACTIVE = "active"
    EXPIRED = "expired"
    ENDED = "ended"


class CredentialAction(StrEnum):
    """What can be done with a key (all but refresh) or a session (all but rotate; it cannot be exchanged)."""

    USE = "use"
    EXCHANGE = "exchange"
    REFRESH = "refresh"
    ROTATE = "rotate"
    END = "end"


_C, _D = CredentialState, CredentialAction

# A rotated key is active until its overlap is over; then it is expired.
KEY_TRANSITIONS: Mapping[tuple[CredentialState, CredentialAction], CredentialState] = MappingProxyType({
    (_C.ACTIVE, _D.USE): _C.ACTIVE,
    (_C.ACTIVE, _D.EXCHANGE): _C.ACTIVE,
    (_C.ACTIVE, _D.ROTATE): _C.ACTIVE,
    (_C.ACTIVE, _D.END): _C.ENDED,
    (_C.EXPIRED, _D.END): _C.ENDED,
    (_C.ENDED, _D.END): _C.ENDED,
})  # fmt: skip

# Whoever shows a session that has expired or ended is nobody, so that nothing can be done with it any more.
SESSION_TRANSITIONS: Mapping[tuple[CredentialState, CredentialAction], CredentialState] = MappingProxyType({
    (_C.ACTIVE, _D.USE): _C.ACTIVE,
    (_C.ACTIVE, _D.REFRESH): _C.ACTIVE,
    (_C.ACTIVE, _D.END): _C.ENDED,
})  # fmt: skip


_K = CellState

# From a state to those that an operator may set. What is being emptied is not made full: it would be neither.
CELL_TRANSITIONS: Mapping[CellState, frozenset[CellState]] = MappingProxyType({
    _K.ACTIVE: frozenset([_K.DRAINING, _K.FULL, _K.DOWN]),
    _K.FULL: frozenset([_K.ACTIVE, _K.DRAINING, _K.DOWN]),
    _K.DRAINING: frozenset([_K.ACTIVE, _K.DOWN]),
    _K.DOWN: frozenset([_K.ACTIVE, _K.FULL, _K.DRAINING]),
})  # fmt: skip

_M = MoveState

# A stop may be given up and begun again. What is being undone is never done.
MOVE_TRANSITIONS: Mapping[MoveState, frozenset[MoveState]] = MappingProxyType({
    _M.COPYING: frozenset([_M.STOPPING, _M.UNDOING]),
    _M.STOPPING: frozenset([_M.COPYING, _M.UNDOING, _M.DONE]),
    _M.UNDOING: frozenset([_M.UNDONE]),
    _M.UNDONE: frozenset(),
    _M.DONE: frozenset(),
})  # fmt: skip


def sources(action: DatabaseAction) -> frozenset[DatabaseState]:
    """The states of a database in which an action is possible."""
    return frozenset(state for state, possible in DATABASE_TRANSITIONS if possible is action)
