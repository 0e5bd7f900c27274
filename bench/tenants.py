"""Many customers of one stack: organizations with a key each, and databases of theirs.

    tenants = new_tenants(stack, organizations=10, databases=1_000, tier="dedicated")
    made = make(stack, tenants)
    fill(url, tenants[:100])

Databases are made by the control plane, several at a time, as customers make them. A table of 1,000 numbers is filled
through the data plane.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise

from bench.loads import check_one
from bench.nodes import directory_dsn
from bench.processes import cpu_s
from bench.stack import Stack
from plainsql_server.control_plane import keys, organizations
from plainsql_server.core.principal import Scope
from plainsql_server.directory import cells
from plainsql_server.directory.cells import CellChange
from plainsql_server.directory.connection import Directory

# All have four digits, so that all requests are equally long.
FIRST_NUMBER, LAST_NUMBER = 1_000, 1_999
SQL = "select double from numbers where n = $1"
_FILL = (
    f"create table numbers as select n, n * 2 as double from generate_series({FIRST_NUMBER}, {LAST_NUMBER}) n",
    "alter table numbers add primary key (n)",
)
_SCOPES = (Scope.READ, Scope.WRITE, Scope.ADMIN)
# Twice as many as there are cores, since part of a creation is waiting for the disk.
_AT_ONCE = 4
_PROGRESS_EVERY_S = 5.0
# A rate is sustained if each part of the databases was made at it.
_PARTS = 4


@dataclass(frozen=True)
class Tenant:
    """A database, and a key of the organization that owns it."""

    database: str
    api_key: str

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self.api_key}", "X-Database": self.database, "Content-Type": "application/json",
        }  # fmt: skip


@dataclass(frozen=True)
class Made:
    """How fast databases were made: all of them, and the slowest quarter; and the processor time of one."""

    databases: int
    per_second: float
    slowest_per_second: float
    cpu_ms: float


def new_tenants(stack: Stack, organization_count: int, databases: int, tier: str, name: str = "bench") -> list[Tenant]:
    """Creates the organizations, which share the databases round robin. The databases are not made yet."""
    api_keys = asyncio.run(_prepare(directory_dsn(stack), organization_count, databases, tier, name))
    return [Tenant(f"{name}{number}", api_keys[number % organization_count]) for number in range(databases)]


async def _prepare(dsn: str, count: int, databases: int, tier: str, name: str) -> list[str]:
    async with Directory.open(dsn, max_connections=1) as directory:
        for cell in await cells.list_(directory):
            # The stack has a database of its own.
            more = CellChange(max_databases=cell.max_databases + databases)
            await cells.change(directory, cell.id, more, only_from=())
        owners = [await organizations.create(directory, f"{name}{number}", tier) for number in range(count)]
        created = [await keys.create(directory, owner.id, "bench", _SCOPES) for owner in owners]
    return [secret.text for _, secret in created]


def make(stack: Stack, tenants: Sequence[Tenant]) -> Made:
    """Makes the databases."""

    def make_one(tenant: Tenant) -> None:
        check_one(f"{stack.control_url}/v1/databases", tenant.headers, json.dumps({"name": tenant.database}))

    pids = stack.pids["control"], stack.postgres_pid
    before_s = sum(map(cpu_s, pids))
    finished_s = _run_all("made", make_one, tenants)
    cpu_ms = (sum(map(cpu_s, pids)) - before_s) / len(tenants) * 1000
    return Made(len(tenants), len(tenants) / finished_s[-1], slowest_rate(finished_s), cpu_ms)


def fill(url: str, tenants: Sequence[Tenant]) -> None:
    """Makes a table in each of the databases."""

    def fill_one(tenant: Tenant) -> None:
        check_one(f"{url}/v1/transaction", tenant.headers, json.dumps({"statements": _FILL}))

    _run_all("filled", fill_one, tenants)


def slowest_rate(finished_s: Sequence[float]) -> float:
    """The rate of the slowest quarter, by when each was finished, in seconds since the beginning."""
    if len(finished_s) < _PARTS:
        return len(finished_s) / finished_s[-1]
    bounds = [len(finished_s) * part // _PARTS for part in range(_PARTS + 1)]
    ends_s = [0.0, *finished_s]
    return min((last - first) / (ends_s[last] - ends_s[first]) for first, last in pairwise(bounds))


def _run_all(done: str, work: Callable[[Tenant], None], tenants: Sequence[Tenant]) -> list[float]:
    """Works on several at a time, with a progress line. Returns when each was finished, in seconds, in order."""
    began_s = shown_s = time.monotonic()
    finished_s: list[float] = []
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        try:
            for future in as_completed([workers.submit(work, tenant) for tenant in tenants]):
                future.result()
                now_s = time.monotonic()
                finished_s.append(now_s - began_s)
                if now_s - shown_s >= _PROGRESS_EVERY_S:
                    shown_s = now_s
                    _show_progress(done, len(finished_s), len(tenants), finished_s[-1])
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise
    return finished_s


def _show_progress(done: str, count: int, total: int, elapsed_s: float) -> None:
    line = f"{done} {count:,} of {total:,} databases, {count / elapsed_s:.1f}/s, {elapsed_s:.0f} s"
    print(line, file=sys.stderr, flush=True)
