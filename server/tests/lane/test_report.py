"""What the lane reports is what the ordinary path reports: log lines, metrics and usage."""

import asyncio
import io
import json
import re
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from plainsql_server.core.observation import RequestFinished
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.data_plane.databases import Place
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.tally import Tally
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from plainsql_server.extension_modules import COMPILED
from plainsql_server.logs import Log
from plainsql_server.metrics import BUCKETS_US, Metrics

if COMPILED:
    from plainsql_server.lane.caller import caller_of
    from plainsql_server.lane.report import Report

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

PRINCIPAL = Principal("org_1", "key_1", "dedicated", frozenset([Scope.WRITE]))
ROUTE = "/v1/query"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Desk:
    """A report, and where it goes."""

    def __init__(self) -> None:
        self.lines = io.BytesIO()
        self.metrics = Metrics()
        # It writes nothing here, so it needs no directory.
        self.tally = Tally(cast("Directory", None), 1_000, lambda _: None)
        self.report = Report(ROUTE, Log(self.lines), self.metrics, self.tally)
        self.caller = made_caller()

    def note(self, total_us: int = 1_000, trace_id: bytes | None = None, rows: int = 1, size_bytes: int = 10) -> None:
        exec_us, queue_us = total_us // 2, total_us // 4
        self.report.note(
            self.caller, b"req_abcdefgh", trace_id, total_us, queue_us, exec_us, rows, b"SELECT", size_bytes
        )


def made_caller() -> object:
    return asyncio.run(_made_caller())


async def _made_caller() -> object:
    pools = Pools(PoolLimits(1, 1, 1), 1_000, lambda _: None)
    pool = pools.for_address(Address("host=/nowhere", "d", "r"), PRINCIPAL.organization_id)
    return caller_of(PRINCIPAL, Place("db_1", without_code=True, address=pool.address), pool)


def finished(total_us: int, trace_id: str | None, rows: int) -> RequestFinished:
    return RequestFinished(
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "request", "req_abcdefgh", "POST", ROUTE, 200, total_us,
        total_us // 4, total_us // 2, rows, "SELECT", None, "org_1", "key_1", trace_id,
    )  # fmt: skip


def ordinary(observations: list[RequestFinished]) -> tuple[bytes, Metrics]:
    """The lines and the metrics of the ordinary path."""
    lines, metrics = io.BytesIO(), Metrics()
    log = Log(lines)
    for observation in observations:
        log(observation)
        metrics(observation)
    log.write()
    return lines.getvalue(), metrics


def without_time(line: bytes) -> bytes:
    return re.sub(rb'^\{"at":"[^"]+"', b'{"at":""', line)


@pytest.mark.parametrize("trace_id", [None, TRACE])
def test_a_line_has_the_bytes_of_the_ordinary_one(trace_id: str | None) -> None:
    desk = Desk()
    desk.note(12_345, None if trace_id is None else trace_id.encode(), rows=3)
    desk.report.flush()
    lines, _ = ordinary([finished(12_345, trace_id, 3)])
    assert without_time(desk.lines.getvalue()) == without_time(lines)
    at = json.loads(desk.lines.getvalue())["at"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", at)
    assert abs((datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()) < 60


def samples(metrics: Metrics) -> list[str]:
    return sorted(line for line in generate_latest(metrics.registry).decode().splitlines() if "_created" not in line)


_edges = st.sampled_from([edge + step for edge in (0, *BUCKETS_US) for step in (-1, 0, 1)])


@given(st.lists(st.one_of(st.integers(0, 400_000_000), _edges.map(lambda us: max(0, 2 * us))), max_size=20))
def test_durations_are_counted_in_the_same_buckets(times_us: list[int]) -> None:
    desk = Desk()
    for time_us in times_us:
        desk.note(time_us)
    desk.report.flush()
    _, metrics = ordinary([finished(time_us, None, 1) for time_us in times_us])
    assert samples(desk.metrics) == samples(metrics)


def test_usage_is_counted_once() -> None:
    desk = Desk()
    for _ in range(3):
        desk.note(1_000, rows=2, size_bytes=7)
    desk.report.flush()
    desk.report.flush()
    assert desk.report.is_empty
    (used,) = desk.tally._sums.values()
    assert (used.organization_id, used.database_id) == ("org_1", "db_1")
    assert (used.requests, used.rows, used.engine_us, used.bytes) == (3, 6, 1_500, 21)
    assert desk.lines.getvalue().count(b"\n") == 3


def test_a_key_is_used_when_its_last_request_begins() -> None:
    desk = Desk()
    for total_us in (1_000, 900_000_000):
        desk.note(total_us)
    desk.report.flush()
    ended = datetime.fromisoformat(json.loads(desk.lines.getvalue().splitlines()[0])["at"])
    assert desk.tally._used_keys == {"key_1": ended - timedelta(microseconds=1_000)}


def test_counts_survive_a_log_that_cannot_be_written() -> None:
    desk = Desk()
    desk.note()
    desk.lines.close()
    with pytest.raises(ValueError, match="closed file"):
        desk.report.flush()
    assert desk.report.is_empty
    assert any('plainsql_requests_total{route="/v1/query",status="200"} 1.0' in line for line in samples(desk.metrics))
