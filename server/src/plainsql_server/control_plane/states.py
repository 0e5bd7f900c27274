"""The states of databases, keys, sessions, cells and moves, and the allowed transitions, as tables.

A transition that is not in a table is not possible. `server/tests/control_plane/test_states.py` tries every pair of a
state and an action, and `docs/reference/control.md` shows the tables to customers.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from plainsql_server.directory.cells import CellState
from plainsql_server.directory.databases import DatabaseState
from plainsql_server.directory.moves import MoveState


class DatabaseAction(StrEnum):
    """The actions on a database.

    The service itself finishes, fails and drops. The operator suspends and resumes. The organization does the rest.
    """

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

# A restored database returns to the state it had before its deletion, so deleting does not undo a suspension.
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

# The states that a deletion can be undone to. A database that was never ready cannot be restored.
RESTORABLE = frozenset([_S.READY, _S.SUSPENDED])


class CredentialState(StrEnum):
    """Whether a key or a session is valid. A revoked key and an ended session are both ENDED."""

    ACTIVE = "active"
    EXPIRED = "expired"
    ENDED = "ended"


class CredentialAction(StrEnum):
    """The actions on a key (all but refresh) or a session (use, refresh and end)."""

    USE = "use"
    EXCHANGE = "exchange"
    REFRESH = "refresh"
    ROTATE = "rotate"
    END = "end"


_C, _D = CredentialState, CredentialAction

# A rotated key stays active until its overlap ends; then it is expired.
KEY_TRANSITIONS: Mapping[tuple[CredentialState, CredentialAction], CredentialState] = MappingProxyType({
    (_C.ACTIVE, _D.USE): _C.ACTIVE,
    (_C.ACTIVE, _D.EXCHANGE): _C.ACTIVE,
    (_C.ACTIVE, _D.ROTATE): _C.ACTIVE,
    (_C.ACTIVE, _D.END): _C.ENDED,
    (_C.EXPIRED, _D.END): _C.ENDED,
    (_C.ENDED, _D.END): _C.ENDED,
})  # fmt: skip

# An expired or ended session no longer authenticates its caller, so no action on it is possible.
SESSION_TRANSITIONS: Mapping[tuple[CredentialState, CredentialAction], CredentialState] = MappingProxyType({
    (_C.ACTIVE, _D.USE): _C.ACTIVE,
    (_C.ACTIVE, _D.REFRESH): _C.ACTIVE,
    (_C.ACTIVE, _D.END): _C.ENDED,
})  # fmt: skip


_K = CellState

# The states that an operator can set, by current state. A draining cell cannot become full: the two contradict. From
# lost, there is a way back, for a cell that answers again. `cells.remove` removes one.
CELL_TRANSITIONS: Mapping[CellState, frozenset[CellState]] = MappingProxyType({
    _K.ACTIVE: frozenset([_K.DRAINING, _K.FULL, _K.DOWN, _K.LOST]),
    _K.FULL: frozenset([_K.ACTIVE, _K.DRAINING, _K.DOWN, _K.LOST]),
    _K.DRAINING: frozenset([_K.ACTIVE, _K.DOWN, _K.LOST]),
    _K.DOWN: frozenset([_K.ACTIVE, _K.FULL, _K.DRAINING, _K.LOST]),
    _K.LOST: frozenset([_K.ACTIVE, _K.FULL, _K.DRAINING]),
    _K.REMOVED: frozenset(),
})  # fmt: skip

_M = MoveState

# A stop can be abandoned and started again. A move that is being undone can never be done.
MOVE_TRANSITIONS: Mapping[MoveState, frozenset[MoveState]] = MappingProxyType({
    _M.COPYING: frozenset([_M.STOPPING, _M.UNDOING]),
    _M.STOPPING: frozenset([_M.COPYING, _M.UNDOING, _M.DONE]),
    _M.UNDOING: frozenset([_M.UNDONE]),
    _M.UNDONE: frozenset(),
    _M.DONE: frozenset(),
})  # fmt: skip


def sources(action: DatabaseAction) -> frozenset[DatabaseState]:
    """The database states in which an action is possible."""
    return frozenset(state for state, possible in DATABASE_TRANSITIONS if possible is action)
