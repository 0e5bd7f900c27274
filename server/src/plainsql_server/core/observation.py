"""Observations: typed events that the service reports about itself.

A component reports an event by calling `Observe`. `assembly.py` decides what becomes of it: a log line, a metric. An
observation never contains SQL text, parameters, result values or secrets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from plainsql_server.core.errors import ServiceError, described


@dataclass(slots=True)
class Observation:
    """The base class of every event."""

    at: datetime
    event: str


@dataclass(slots=True)
class RequestFinished(Observation):
    """The service has answered an HTTP request."""

    request_id: str
    method: str
    route: str
    status: int
    total_us: int
    queue_us: int
    exec_us: int
    row_count: int
    command: str | None
    error_code: str | None
    organization_id: str | None
    key_id: str | None
    trace_id: str | None
    # The format of a stream, and the bytes of its body. A stream that failed or was abandoned has an error code.
    stream: str | None = None
    sent_bytes: int = 0


@dataclass(slots=True)
class FailureObserved(Observation):
    """Something in the service failed and was handled. `context` is for operators only."""

    where: str
    context: str
    request_id: str | None = None


@dataclass(slots=True)
class Reaped(Observation):
    """The reaper ended something on a cell. `what` is the reaper's name for it."""

    cell: str
    what: str
    count: int


def describe_for_operators(error: Exception) -> str:
    """The text of an error for the context of a `FailureObserved`."""
    if isinstance(error, ServiceError):
        return error.internal_context or error.message
    return described(error)


@dataclass(slots=True)
class LimiterChanged(Observation):
    """The source of permits has changed: `shared` means Redis, `lost` and `warming` mean this process's own share."""

    state: str
    context: str | None = None


@dataclass(slots=True)
class MembershipChanged(Observation):
    """The number of processes of a plane has changed. `share` is the part of each limit that this one should have."""

    plane: str
    processes: int
    share: float


@dataclass(frozen=True, slots=True)
class LimiterLoad:
    """The state and counters of one process's limiter at one point in time."""

    is_degraded: bool
    round_trips: int
    permits: dict[str, int]
    """How many permits were granted, by source."""
    processes: int
    """How many processes of the plane divide its limits."""
    share: float
    """The part of each limit that this process holds."""


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """The requests of one process that were begun on the fast lane, and by reason those that were not, or not finished.

    `passed` took the ordinary path from their start, `handed_over` were begun on the lane, or waited there for a slot.
    """

    begun: int
    passed: Mapping[str, int]
    handed_over: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HandshakeLoad:
    """The TLS handshakes of one process: those under way, and by reason those that did not succeed."""

    under_way: int
    failed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnauthenticatedLoad:
    """What one process holds of requests whose key is not accepted yet, and how many connections it closed for that."""

    held_bytes: int
    closed: int


@dataclass(frozen=True, slots=True)
class CellUpkeep:
    """What an operator has to watch on one cell. If it is not up, nothing else is known."""

    cell: str
    is_up: bool = False
    transaction_id_age: int | None = None
    multixact_id_age: int | None = None
    standbys_missing: int | None = None
    behind_bytes: int | None = None
    is_archiving_failing: bool | None = None
    archive_lag_s: float | None = None
    # Since the last backup in its archive ended. None: pgBackRest does not archive it.
    archive_backup_age_s: float | None = None
    # Since the last rehearsal that succeeded, and whether the last one failed. None: pgBackRest does not archive it.
    rehearsal_age_s: float | None = None
    is_rehearsal_failing: bool | None = None
    # Whether another machine receives its WAL, what is not received, and whether it can go on. None: none should.
    is_stream_received: bool | None = None
    stream_lag_bytes: int | None = None
    stream_lag_s: float | None = None
    is_stream_lost: bool | None = None
    # None: the disk is another machine's.
    disk_free_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class UpkeepLoad:
    """What an operator has to watch, as measured last. `measured_at_s` is 0 before the first time."""

    measured_at_s: float = 0.0
    cells: Sequence[CellUpkeep] = ()
    # When each certificate expires, in seconds since 1970, by what it is for.
    certificate_expiry_s: Mapping[str, float] = field(default_factory=dict)
    backup_age_s: float | None = None
    directory_backup_age_s: float | None = None
    backups_failing: int = 0
    # None: the directory is not archived.
    directory_archive_lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class CellLoad:
    """What one process uses of one cell at one point in time."""

    cell: str
    open_connections: int
    running: int
    waiting: int
    pools: int
    streams: int


Observe = Callable[[Observation], None]
