"""What a quiet customer feels while another floods one of its databases, or 200 of them, on the same cell.

    missed = show(stack, plan)

The quiet customer looks up a row of its own database at a steady, low rate. Each round measures it alone, beside a
flood of one database, and beside a flood of many, so that what else happens to the machine happens to all of them. How
long a request waited for a connection is what the service says in Server-Timing.
"""

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

from bench import bars
from bench.spreads import UNIFORM, Load, Spread, opened_connections
from bench.stack import Stack
from bench.tenants import FIRST_NUMBER, SQL, Tenant, fill, make, new_tenants

# How often the quiet customer asks.
_EVERY_S = 0.01
_TIMEOUT_S = 30.0
# How long a flood lasts before it counts: until its databases have their connections.
_WARM_UP_S = 1.0
_QUEUE = re.compile(r"queue;dur=([\d.]+)")


@dataclass(frozen=True)
class Plan:
    """What to measure: a flood of so many databases, over so many HTTP connections."""

    databases: int
    tier: str
    connections: int
    rounds: int
    seconds: float
    # Past the alias.
    is_direct: bool = False


@dataclass
class QuietLookups:
    """What the quiet customer's lookups took, and how long they waited for a connection."""

    took_ms: list[float] = field(default_factory=list)
    waited_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def percentile_ms(self, percent: float) -> float:
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True)
class Felt:
    """Those of one measurement, in short, and what the flood did meanwhile."""

    p50_ms: float
    p99_ms: float
    longest_wait_ms: float
    failed: int
    flood_per_s: float
    opened_per_s: float


def show(stack: Stack, plan: Plan) -> list[str]:
    """Measures, and prints a table. Returns which figures miss their bars."""
    url = stack.data_url if plan.is_direct else stack.alias_url
    if url is None:
        raise SystemExit("there is no alias, because nginx isn't installed; use --direct")
    (quiet,) = new_tenants(stack, 1, 1, plan.tier, "quiet")
    flooded = new_tenants(stack, 1, plan.databases, plan.tier, "flood")
    make(stack, [quiet, *flooded])
    fill(url, [quiet, *flooded])
    found = measure(Load(stack, url, flooded, plan.connections), quiet, plan.rounds, plan.seconds)
    return print_found(found)


def measure(load: Load, quiet: Tenant, rounds: int, seconds: float) -> dict[str, list[Felt]]:
    """By the name of the flood, what was felt in each round."""
    load.check()
    floods = {"none": None, "1 database": Spread(1), f"{len(load.tenants)} databases": _spread(load)}
    found: dict[str, list[Felt]] = {name: [] for name in floods}
    for _ in range(rounds):
        for name, spread in floods.items():
            found[name].append(_measure_one(load, quiet, spread, seconds))
    return found


def _spread(load: Load) -> Spread:
    return Spread(len(load.tenants), UNIFORM)


def _measure_one(load: Load, quiet: Tenant, flood: Spread | None, seconds: float) -> Felt:
    with _flooding(load, flood) as rates:
        # Not counted: the flood begins, and the quiet customer gets its connection.
        look_up(load.url, quiet, _WARM_UP_S)
        opened, began_s = opened_connections(load.stack), time.monotonic()
        lookups = look_up(load.url, quiet, seconds)
        opened_per_s = (opened_connections(load.stack) - opened) / (time.monotonic() - began_s)
    return Felt(
        p50_ms=lookups.percentile_ms(50),
        p99_ms=lookups.percentile_ms(99),
        longest_wait_ms=max(lookups.waited_ms, default=0.0),
        failed=lookups.failed,
        flood_per_s=rates[0] if rates else 0.0,
        opened_per_s=opened_per_s,
    )


@contextmanager
def _flooding(load: Load, flood: Spread | None) -> Iterator[list[float]]:
    if flood is None:
        yield []
    else:
        with load.running(flood) as rates:
            yield rates


def look_up(url: str, tenant: Tenant, seconds: float) -> QuietLookups:
    """Looks up a row again and again, at a steady rate, over one connection."""
    lookups = QuietLookups()
    body = json.dumps({"sql": SQL, "params": [FIRST_NUMBER]})
    connection = _connection(url)
    began_s = next_s = time.monotonic()
    try:
        while next_s < began_s + seconds:
            time.sleep(max(0.0, next_s - time.monotonic()))
            _look_up_once(connection, tenant, body, lookups)
            # One that took long delays the next one, and does not make it hurry.
            next_s = max(next_s, time.monotonic()) + _EVERY_S
    finally:
        connection.close()
    return lookups


def _look_up_once(connection: http.client.HTTPConnection, tenant: Tenant, body: str, lookups: QuietLookups) -> None:
    sent_s = time.monotonic()
    connection.request("POST", "/v1/query", body, tenant.headers)
    response = connection.getresponse()
    answer = response.read()
    lookups.took_ms.append((time.monotonic() - sent_s) * 1000)
    lookups.failed += b'"success":true' not in answer
    # The alias adds a header of its own.
    timing = ", ".join(response.headers.get_all("Server-Timing") or [])
    lookups.waited_ms += [float(each) for each in _QUEUE.findall(timing)]


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
    # The certificate is the stack's own.
    trusting = ssl._create_unverified_context()
    return http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_S, context=trusting)


def figures(felt: Sequence[Felt], alone: Sequence[Felt]) -> dict[str, float]:
    """By column, those that have bars."""
    return {
        bars.TIMES_ALONE: median(each.p99_ms / its.p99_ms for each, its in zip(felt, alone, strict=True)),
        bars.LONGEST_WAIT_MS: max(each.longest_wait_ms for each in felt),
        bars.FAILED: sum(each.failed for each in felt),
    }


def print_found(found: dict[str, list[Felt]]) -> list[str]:
    """Prints the table, and returns which figures miss their bars. The first line is that without a flood."""
    print(
        f"{'flood':14}  p50 ms  {bars.P99_MS}  {bars.TIMES_ALONE}  {bars.LONGEST_WAIT_MS}  {bars.FAILED}"
        f"  flood's lookups/s  {bars.OPENED}"
    )
    alone, missed = found["none"], list[str]()
    for name, felt in found.items():
        these = figures(felt, alone)
        wanted = {} if felt is alone else bars.FLOOD_BARS
        missing = bars.missed(these, wanted)
        print(
            f"{name:14}  {_middle(felt, 'p50_ms'):6.1f}  {_middle(felt, 'p99_ms'):6.1f}"
            f"  {these[bars.TIMES_ALONE]:{len(bars.TIMES_ALONE)}.1f}"
            f"  {these[bars.LONGEST_WAIT_MS]:{len(bars.LONGEST_WAIT_MS)}.1f}  {these[bars.FAILED]:6.0f}"
            f"  {_middle(felt, 'flood_per_s'):17.0f}  {_middle(felt, 'opened_per_s'):8.1f}"
            f"  {bars.verdict(missing, wanted)}",
            flush=True,
        )
        missed += missing
    return missed


def _middle(felt: Sequence[Felt], figure: str) -> float:
    return median(float(getattr(each, figure)) for each in felt)
