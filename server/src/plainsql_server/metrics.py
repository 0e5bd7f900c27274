"""Turns observations into Prometheus metrics, served on a separate port that is not public.

Label values come from our own lists (routes, codes, cells), never from customers, so their number is bounded. Counting
is plain arithmetic; Prometheus objects are built only when the metrics are scraped, because the library's own counters
take a lock each, which had a measurable cost.
"""

import logging
import math
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from plainsql_server import VERSION
from plainsql_server.core.observation import (
    CellLoad,
    HandshakeLoad,
    LaneLoad,
    LimiterLoad,
    Observation,
    Reaped,
    RequestFinished,
    UnauthenticatedLoad,
    UpkeepLoad,
)
from plainsql_server.extension_modules import COMPILED_TEXT

# From a quarter of a millisecond, the time of a point lookup, to the longest deadline.
BUCKETS_US: tuple[int, ...] = (
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000, 300_000_000,
)  # fmt: skip

# How often a worker looks for a free port, and after how long its predecessor has ended for certain.
_TRY_EVERY_S = 0.2
_PREDECESSOR_ENDS_S = 60.0

_log = logging.getLogger("uvicorn.error")

Loads = Callable[[], Iterable[CellLoad]]


class _Durations:
    """A histogram of durations."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_US) + 1)
        self.sum_us = 0

    def add(self, duration_us: int) -> None:
        self.counts[bisect_left(BUCKETS_US, duration_us)] += 1
        self.sum_us += duration_us

    def add_all(self, counts: Sequence[int], sum_us: int) -> None:
        """Adds durations that were counted elsewhere, in the same buckets."""
        for index, count in enumerate(counts):
            self.counts[index] += count
        self.sum_us += sum_us

    def buckets(self) -> list[tuple[str, float]]:
        total = 0
        buckets = []
        for edge, count in zip([*(str(us / 1e6) for us in BUCKETS_US), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((edge, float(total)))
        return buckets


class Metrics(Collector):
    """An observer that counts observations."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._loads: Loads = list
        self._limiter: Callable[[], LimiterLoad] | None = None
        self._lane: Callable[[], LaneLoad] | None = None
        self._handshakes: Callable[[], HandshakeLoad] | None = None
        self._unauthenticated: Callable[[], UnauthenticatedLoad] | None = None
        self._upkeep: Callable[[], UpkeepLoad] | None = None
        self._requests: Counter[tuple[str, int]] = Counter()
        self._errors: Counter[str] = Counter()
        self._reaped: Counter[tuple[str, str]] = Counter()
        self._rows = 0
        self._streams: Counter[tuple[str, str]] = Counter()
        self._stream_bytes = 0
        self._stages: dict[str, tuple[_Durations, _Durations, _Durations]] = {}
        self._server: WSGIServer | None = None
        self._is_closed = threading.Event()

    def __call__(self, observation: Observation) -> None:
        if isinstance(observation, RequestFinished):
            self._count(observation)
        elif isinstance(observation, Reaped):
            self._reaped[observation.cell, observation.what] += observation.count

    def add_requests(self, route: str, count: int, row_count: int, stages: Sequence[tuple[Sequence[int], int]]) -> None:
        """Counts requests that the fast lane has answered with 200. `stages` has counts by bucket, and their sum."""
        self._requests[route, 200] += count
        self._rows += row_count
        for durations, (counts, sum_us) in zip(self._stages_of(route), stages, strict=True):
            durations.add_all(counts, sum_us)

    def watch(self, loads: Loads) -> None:
        """Adds the pools' state to the metrics."""
        self._loads = loads

    def watch_limiter(self, load: Callable[[], LimiterLoad]) -> None:
        """Adds the limiter's state to the metrics."""
        self._limiter = load

    def watch_lane(self, load: Callable[[], LaneLoad]) -> None:
        """Adds the fast lane's counters to the metrics."""
        self._lane = load

    def watch_handshakes(self, load: Callable[[], HandshakeLoad]) -> None:
        """Adds clients' TLS handshakes to the metrics."""
        self._handshakes = load

    def watch_unauthenticated(self, load: Callable[[], UnauthenticatedLoad]) -> None:
        """Adds what requests without an accepted key hold."""
        self._unauthenticated = load

    def watch_upkeep(self, load: Callable[[], UpkeepLoad]) -> None:
        """Adds what the control plane measures of cells, certificates and backups."""
        self._upkeep = load

    def serve(self, host: str, ports: range) -> None:
        """Serves the metrics on the first free port. Each worker process takes one.

        A worker that replaces another starts before that one ends, so it may have to wait for its port.
        """
        if not self._is_served(host, ports):
            threading.Thread(target=self._serve_later, args=(host, ports), daemon=True).start()

    def _is_served(self, host: str, ports: range) -> bool:
        for port in ports:
            # Another worker may have this port; then try the next one.
            with suppress(OSError):
                self._server, _ = start_http_server(port, addr=host, registry=self.registry)
                return True
        return False

    def _serve_later(self, host: str, ports: range) -> None:
        warn_s = time.monotonic() + _PREDECESSOR_ENDS_S
        while not self._is_served(host, ports):
            if time.monotonic() > warn_s:
                _log.warning("No metrics: no port is free from %d to %d.", ports.start, ports.stop - 1)
                warn_s = math.inf
            if self._is_closed.wait(_TRY_EVERY_S):
                return

    def close(self) -> None:
        """Stops serving, so that a successor can have the port."""
        self._is_closed.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "plainsql_build_info",
            "Version, and whether there are extension modules. Always 1.",
            labels=["version", "extension_modules"],
        )
        build.add_metric([VERSION, COMPILED_TEXT], 1)
        yield build
        requests = CounterMetricFamily("plainsql_requests", "Completed requests.", labels=["route", "status"])
        for (route, status), count in list(self._requests.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        errors = CounterMetricFamily("plainsql_errors", "Failed requests by error code.", labels=["code"])
        for code, count in list(self._errors.items()):
            errors.add_metric([code], count)
        yield errors
        streams = CounterMetricFamily("plainsql_streams", "Streams that have ended.", labels=["format", "end"])
        for (stream_format, end), count in list(self._streams.items()):
            streams.add_metric([stream_format, end], count)
        yield streams
        yield CounterMetricFamily("plainsql_stream_bytes", "Bytes sent to clients in streams.", self._stream_bytes)
        yield CounterMetricFamily("plainsql_rows", "Rows sent to clients.", self._rows)
        reaped = CounterMetricFamily(
            "plainsql_reaped",
            "Transactions and connections ended, and databases suspended, by cell.",
            labels=["cell", "what"],
        )
        for (cell, what), count in list(self._reaped.items()):
            reaped.add_metric([cell, what], count)
        yield reaped
        yield self._durations()
        yield from self._cells()
        if self._limiter is not None:
            yield from _limiter_metrics(self._limiter())
        if self._lane is not None:
            yield from _lane_metrics(self._lane())
        if self._handshakes is not None:
            yield from _handshake_metrics(self._handshakes())
        if self._unauthenticated is not None:
            yield from _unauthenticated_metrics(self._unauthenticated())
        if self._upkeep is not None:
            yield from _upkeep_metrics(self._upkeep())

    def _count(self, finished: RequestFinished) -> None:
        route = finished.route
        self._requests[route, finished.status] += 1
        stages = self._stages_of(route)
        stages[0].add(finished.total_us)
        self._rows += finished.row_count
        if finished.exec_us:
            stages[1].add(finished.queue_us)
            stages[2].add(finished.exec_us)
        if finished.stream is not None:
            self._streams[finished.stream, finished.error_code or "done"] += 1
            self._stream_bytes += finished.sent_bytes
        if finished.error_code is not None:
            self._errors[finished.error_code] += 1

    def _stages_of(self, route: str) -> tuple[_Durations, _Durations, _Durations]:
        """The durations of a route: in total, in the queue, and in the engine."""
        stages = self._stages.get(route)
        if stages is None:
            stages = self._stages[route] = (_Durations(), _Durations(), _Durations())
        return stages

    def _durations(self) -> Metric:
        family = HistogramMetricFamily(
            "plainsql_request_seconds", "Duration of requests by stage.", labels=["route", "stage"]
        )
        for route, stages in list(self._stages.items()):
            for stage, durations in zip(("total", "queue", "engine"), stages, strict=True):
                family.add_metric([route, stage], durations.buckets(), durations.sum_us / 1e6)
        return family

    def _cells(self) -> Iterator[Metric]:
        loads = list(self._loads())
        for name, text in (
            ("open_connections", "Open connections to the cell."),
            ("running", "Running statements."),
            ("waiting", "Requests waiting for a connection."),
            ("pools", "Connection pools, one per database and role."),
            ("streams", "Open streams."),
        ):
            family = GaugeMetricFamily(f"plainsql_cell_{name}", text, labels=["cell"])
            totals: Counter[str] = Counter()
            for load in loads:
                # After a cell's address changes, it has pools at both addresses for a while.
                totals[load.cell] += getattr(load, name)
            for cell, total in totals.items():
                family.add_metric([cell], total)
            yield family


def _lane_metrics(load: LaneLoad) -> Iterator[Metric]:
    yield CounterMetricFamily("plainsql_lane_requests", "Requests begun on the fast lane.", load.begun)
    for name, text, counts in (
        ("passed", "Requests that did not begin on the fast lane, by reason.", load.passed),
        ("handed_over", "Requests handed over from the fast lane to the ordinary path, by reason.", load.handed_over),
    ):
        family = CounterMetricFamily(f"plainsql_lane_{name}", text, labels=["reason"])
        for reason, count in counts.items():
            family.add_metric([reason], count)
        yield family


def _handshake_metrics(load: HandshakeLoad) -> Iterator[Metric]:
    yield GaugeMetricFamily("plainsql_handshakes", "TLS handshakes under way.", load.under_way)
    failed = CounterMetricFamily(
        "plainsql_handshakes_failed", "TLS handshakes that did not succeed, by reason.", labels=["reason"]
    )
    for reason, count in load.failed.items():
        failed.add_metric([reason], count)
    yield failed


def _unauthenticated_metrics(load: UnauthenticatedLoad) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "plainsql_unauthenticated_bytes", "Held for requests whose key is not accepted yet.", load.held_bytes
    )
    yield CounterMetricFamily(
        "plainsql_unauthenticated_closed", "Connections closed because such requests held too much.", load.closed
    )


# A gauge for each measure of a cell: its field, its name, its text.
_CELL_UPKEEP = (
    ("is_up", "plainsql_cell_up", "1 if the cell answered when it was last measured."),
    ("transaction_id_age", "plainsql_cell_transaction_id_age", "Transactions since the oldest id that is in use."),
    ("multixact_id_age", "plainsql_cell_multixact_id_age", "Multixacts since the oldest id that is in use."),
    ("standbys_missing", "plainsql_cell_standbys_missing", "Standbys that the cell should have and that don't follow."),
    ("behind_bytes", "plainsql_cell_standby_behind_bytes", "How far the last standby is behind."),
    ("is_archiving_failing", "plainsql_cell_archiving_failed", "1 if the last WAL file could not be archived."),
    ("archive_lag_s", "plainsql_cell_archive_lag_seconds", "For how long, at most, WAL has not been archived."),
    ("archive_backup_age_s", "plainsql_cell_archive_backup_age_seconds", "Since the last backup in the archive ended."),
    ("rehearsal_age_s", "plainsql_cell_rehearsal_age_seconds", "Since a restore from the archive was last rehearsed."),
    ("is_rehearsal_failing", "plainsql_cell_rehearsal_failed", "1 if the last rehearsal of a restore failed."),
    ("is_stream_received", "plainsql_cell_stream_received", "1 if another machine receives the cell's WAL."),
    ("stream_lag_bytes", "plainsql_cell_stream_lag_bytes", "How much WAL has not been received."),
    ("stream_lag_s", "plainsql_cell_stream_lag_seconds", "For how long, at most, WAL has not been received."),
    ("is_stream_lost", "plainsql_cell_stream_lost", "1 if the receiver's slot is lost or missing."),
    ("disk_free_ratio", "plainsql_cell_disk_free_ratio", "Free part of the cell's disk, if it is known."),
)


def _upkeep_metrics(load: UpkeepLoad) -> Iterator[Metric]:
    if not load.measured_at_s:
        return
    yield GaugeMetricFamily(
        "plainsql_upkeep_measured_timestamp_seconds", "When cells, certificates and backups were last measured.",
        load.measured_at_s,
    )  # fmt: skip
    for field, name, text in _CELL_UPKEEP:
        family = GaugeMetricFamily(name, text, labels=["cell"])
        for cell in load.cells:
            value = getattr(cell, field)
            if value is not None:
                family.add_metric([cell.cell], float(value))
        yield family
    expiry = GaugeMetricFamily(
        "plainsql_certificate_expiry_timestamp_seconds", "When a certificate expires.", labels=["certificate"]
    )
    for certificate, expiry_s in load.certificate_expiry_s.items():
        expiry.add_metric([certificate], expiry_s)
    yield expiry
    age = GaugeMetricFamily(
        "plainsql_backup_age_seconds", "Age of the oldest last backup of a database, and of the directory's.",
        labels=["of"],
    )  # fmt: skip
    for of, age_s in (("databases", load.backup_age_s), ("directory", load.directory_backup_age_s)):
        if age_s is not None:
            age.add_metric([of], age_s)
    yield age
    yield GaugeMetricFamily(
        "plainsql_backups_failing", "Databases whose last backup attempt failed.", load.backups_failing
    )
    if load.directory_archive_lag_s is not None:
        yield GaugeMetricFamily(
            "plainsql_directory_archive_lag_seconds", "For how long, at most, the directory's WAL is not archived.",
            load.directory_archive_lag_s,
        )  # fmt: skip


def _limiter_metrics(load: LimiterLoad) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "plainsql_limiter_degraded",
        "1 while processes use their shares of the rate limits: Redis (or the directory) is unavailable, or just back.",
        load.is_degraded,
    )
    yield CounterMetricFamily(
        "plainsql_limiter_round_trips", "Round trips to Redis, or to the directory without it.", load.round_trips
    )
    yield GaugeMetricFamily(
        "plainsql_processes", "Live processes of this plane, as the directory lists them.", load.processes
    )
    yield GaugeMetricFamily("plainsql_share", "The part of its plane's limits that this process holds.", load.share)
    permits = CounterMetricFamily("plainsql_permits", "Permits granted or leased, by source.", labels=["source"])
    for source, number in load.permits.items():
        permits.add_metric([source], number)
    yield permits
