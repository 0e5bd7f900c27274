"""One workload on every side, round by round: rates, processor time per request, one client, and the fast lane's share.

    found = measure(sides, workload, rounds)
    print_found(found, bars)

Each round measures all sides one after the other, so that what else happens to the machine happens to all of them.

A tier with a rate limit allows only short loads, and a minute must pass between two of them. There, processor time and
the lane's share are measured, and no rates: a load ends with its requests, not with its time.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from bench import bars, loads
from bench.counters import lane_requests
from bench.processes import cpu_s
from bench.report import Line
from bench.stack import Stack
from bench.workloads import Workload

PGBENCH_CLIENTS = 16
# Of a minute's permits: what a load may take that is not counted, and one that is. The two data-plane processes hold up
# to a third in advance, which the other one cannot use.
_WARM_UP_SHARE, _COUNTED_SHARE = 1 / 6, 1 / 2
_LIMITED_SECONDS = 30
_RATIOS = (bars.OF_ENGINE, bars.OF_RQLITE)
_COSTS = (bars.SERVICE_US, bars.ENGINE_US, bars.ONE_CLIENT_US, bars.LANE)


@dataclass(frozen=True)
class Sides:
    """What is compared, and how: the stack, rqlite unless it is left out, and the size of the loads."""

    stack: Stack
    rqlite_url: str | None
    scale: int
    connections: int
    seconds: float
    # Of the organization's tier, if it has one.
    requests_per_minute: int | None = None


@dataclass
class Found:
    """What was measured of one workload, round by round."""

    name: str
    rates: Line = field(init=False)
    latencies: Line = field(init=False)
    costs: Line = field(init=False)
    lane: Line = field(init=False)

    def __post_init__(self) -> None:
        self.rates = Line(self.name, "1/s")
        self.latencies = Line(f"{self.name}, one client", "us")
        self.costs = Line(f"{self.name}, processor time", "us")
        self.lane = Line(f"{self.name}, fast lane", "share")

    def lines(self) -> list[Line]:
        return [line for line in (self.rates, self.latencies, self.costs, self.lane) if line.sides]

    def figures(self) -> dict[str, list[float]]:
        """By column, those of all rounds."""
        found = {
            bars.SERVICE_US: self.costs.sides["PlainSQL"],
            bars.ENGINE_US: self.costs.sides["engine"],
            bars.LANE: self.lane.sides["PlainSQL"],
        }
        if self.latencies.sides:
            found[bars.ONE_CLIENT_US] = self.latencies.differences("PlainSQL", "engine")
        for column, side in ((bars.OF_ENGINE, "engine"), (bars.OF_RQLITE, "rqlite")):
            if side in self.rates.sides:
                found[column] = self.rates.ratios("PlainSQL", side)
        return found


def measure(sides: Sides, workload: Workload, rounds: int) -> Found:
    """The workload on every side, so many times."""
    found = Found(workload.name)
    for _ in range(rounds):
        if sides.requests_per_minute is None:
            _compare(sides, workload, found)
        else:
            _measure_within_limit(sides, workload, found, sides.requests_per_minute)
    return found


def _compare(sides: Sides, workload: Workload, found: Found) -> None:
    stack, scale, seconds = sides.stack, sides.scale, sides.seconds
    found.rates.add("engine", loads.pgbench(stack, workload, scale, PGBENCH_CLIENTS, seconds).per_second)
    found.rates.add("PlainSQL", _measure_cost(sides, workload, found).per_second)
    if sides.rqlite_url is not None:
        many = loads.rqlite(sides.rqlite_url, workload, scale, sides.connections, seconds)
        found.rates.add("rqlite", many.per_second)
    found.latencies.add("engine", loads.pgbench(stack, workload, scale, 1, seconds).median_us)
    found.latencies.add("PlainSQL", loads.service(stack, workload, scale, 1, seconds).median_us)
    if sides.rqlite_url is not None:
        found.latencies.add("rqlite", loads.rqlite(sides.rqlite_url, workload, scale, 1, seconds).median_us)


def _measure_within_limit(sides: Sides, workload: Workload, found: Found, limit: int) -> None:
    stack = sides.stack
    _wait_for_permits(stack, limit)
    # Opens the connections, which have idled for a minute, and lets the processes lease permits.
    warm_up = round(limit * _WARM_UP_SHARE)
    loads.service(stack, workload, sides.scale, sides.connections, _LIMITED_SECONDS, at_most=warm_up)
    _measure_cost(sides, workload, found, round(limit * _COUNTED_SHARE))


def _measure_cost(sides: Sides, workload: Workload, found: Found, at_most: int | None = None) -> loads.Measured:
    """A load through PlainSQL, with what it took of the processors and how much of it took the fast lane."""
    stack = sides.stack
    seconds = sides.seconds if at_most is None else _LIMITED_SECONDS
    began_lane = lane_requests(stack.metrics_ports)
    began_s = cpu_s(stack.data_pid), cpu_s(stack.postgres_pid)
    measured = loads.service(stack, workload, sides.scale, sides.connections, seconds, at_most=at_most)
    ended_s = cpu_s(stack.data_pid), cpu_s(stack.postgres_pid)
    took_lane = lane_requests(stack.metrics_ports) - began_lane
    for side, began, ended in zip(("PlainSQL", "engine"), began_s, ended_s, strict=True):
        found.costs.add(side, (ended - began) / measured.requests * 1e6)
    # Some that were answered at the end are not among those that wrk has counted.
    found.lane.add("PlainSQL", min(1.0, took_lane / measured.requests))
    return measured


def _wait_for_permits(stack: Stack, limit: int) -> None:
    """Waits until nearly all of a minute's permits are there, as the service itself counts them."""
    while True:
        answered = loads.check_one(f"{stack.data_url}/v1/query", stack.headers, '{"sql": "select 1"}')
        left, wait_s = map(int, re.findall(r";[rt]=(\d+)", answered["ratelimit"]))
        if left >= limit * 0.9:
            return
        time.sleep(max(1, wait_s))


def print_head() -> None:
    rates = "  ".join(f"{side:>9}" for side in ("pgbench/s", "PlainSQL", "rqlite"))
    ratios = "  ".join(f"{column:>19}" for column in _RATIOS)
    print(f"{'':17}  {rates}  {ratios}  {'  '.join(_COSTS)}")


def print_found(found: Found, wanted: Mapping[str, float]) -> list[str]:
    """Prints a line of the table, and returns which figures miss their bars."""
    rates = "  ".join(_shown(found.rates.sides.get(side), 9, 0) for side in ("engine", "PlainSQL", "rqlite"))
    figures = found.figures()
    ratios = "  ".join(_with_spread(figures.get(column)) for column in _RATIOS)
    costs = "  ".join(_shown(figures.get(column), len(column), 2 if column == bars.LANE else 1) for column in _COSTS)
    missed = bars.missed({column: median(values) for column, values in figures.items()}, wanted)
    print(f"{found.name:17}  {rates}  {ratios}  {costs}  {bars.verdict(missed, wanted)}", flush=True)
    return missed


def _shown(values: list[float] | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if values is None else f"{median(values):{width}.{digits}f}"


def _with_spread(values: list[float] | None) -> str:
    return f"{'-':>19}" if values is None else f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
