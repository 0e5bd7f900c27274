"""What the service notices about itself, as typed events with one way out.

Owns the events. Whoever notices something calls `Observe`; what becomes of it (log line, metric) is
decided once, in `assembly.py`. An observation never holds SQL text, parameters, result values or secrets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from plainsql_server.core.errors import ServiceError


@dataclass(slots=True)
class Observation:
    """Base of every event."""

    at: datetime
    event: str


@dataclass(slots=True)
class RequestFinished(Observation):
    """One HTTP request was answered."""

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
    # The form of a stream, and the bytes of its body; a stream that failed or was given up has an error code.
    stream: str | None = None
    sent_bytes: int = 0


@dataclass(slots=True)
class Failure(Observation):
    """Something failed on our side and was handled; `context` is for operators only."""

    where: str
    context: str
    request_id: str | None = None


@dataclass(slots=True)
class Reaped(Observation):
    """Something on a cell was ended from outside; `what` is one of the reaper's own words."""

    cell: str
    what: str
    count: int


def told_to_operators(error: Exception) -> str:
    """What a failure's context says of an error."""
    if isinstance(error, ServiceError):
        return error.internal_context or error.message
    return f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class LimiterChanged(Observation):
    """Permits come from somewhere else now: `shared` is Redis, `lost` and `warming` are this process' own share."""

    state: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class LimiterLoad:
    """What the limiter of one process has done until one moment."""

    is_degraded: bool
    round_trips: int
    shared_permits: int
    share_permits: int


@dataclass(frozen=True, slots=True)
class CellLoad:
    """What one process uses of one cell, at one moment."""

    cell: str
    open_connections: int
    running: int
    waiting: int
    pools: int
    streams: int


Observe = Callable[[Observation], None]
