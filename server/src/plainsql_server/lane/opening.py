"""Opens the fast lane of a process, if the service is compiled.

with opened_lane(doors, observers, settings.fast_lane) as application.lane: …
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from psycopg import pq

from plainsql_server.core.observation import LaneLoad
from plainsql_server.data_plane.databases import Databases
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.principals import Principals
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.pool.pools import Pools
from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.routes import Route
from plainsql_server.http.server.fast_lane import Lane, Track
from plainsql_server.http.server.readiness import Readiness
from plainsql_server.http.server.request_head import Head
from plainsql_server.limits.permits import Permits
from plainsql_server.logs import Log
from plainsql_server.metrics import Metrics

QUERY = "/v1/query"
TEXT_QUERY = "/query"
TRANSACTION = "/v1/transaction"
SQL = "/sql"
# The routes whose requests the lane answers.
PATHS = (QUERY, TEXT_QUERY, TRANSACTION, SQL)


@dataclass(frozen=True, slots=True)
class Doors:
    """The parts of the ordinary path that the lane uses."""

    principals: Principals
    databases: Databases
    pools: Pools
    permits: Permits
    readiness: Readiness
    freshness: Freshness
    routes: Sequence[Route]


@dataclass(frozen=True, slots=True)
class Observers:
    """Where the lane reports its requests."""

    log: Log
    metrics: Metrics
    tally: Tally


class OpenLane:
    """A lane, and how to make a track on it."""

    def __init__(self, lane: Any, new_track: Callable[[Any, object, Head, Callable[[bytes], None]], Track]) -> None:
        self.lane = lane
        self._new_track = new_track

    def track(self, connection: object, head: Head, parse: Callable[[bytes], None]) -> Track:
        """The lane's side of a new connection."""
        return self._new_track(self.lane, connection, head, parse)

    def load(self) -> LaneLoad:
        """The counters, for the metrics."""
        lane = self.lane
        return LaneLoad(lane.begun, lane.passed.by_name(), lane.handed_over.by_name())

    def close(self) -> None:
        """Reports what is not reported yet."""
        self.lane.close()


@contextmanager
def opened_lane(doors: Doors, observers: Observers, mode: str) -> Iterator[Lane | None]:
    """The lane, in the mode that the setting `fast_lane` gives.

    None if it is off, without extension modules, or with a psycopg that does not show libpq's connections.
    """
    if mode == "off" or not COMPILED or pq.__impl__ == "python":
        yield None
        return
    # Not at the top: they may not be there.
    report, lane, track = (import_module(f"plainsql_server.lane.{name}") for name in ("report", "lane", "track"))
    reports = {
        route.path: report.Report(route.path, observers.log, observers.metrics, observers.tally)
        for route in doors.routes
    }
    opened = OpenLane(lane.Lane(doors, reports, mode), track.Track)
    observers.metrics.watch_lane(opened.load)
    try:
        yield opened
    finally:
        opened.close()
