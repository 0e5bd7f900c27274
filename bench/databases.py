"""What more databases cost: the same look-ups spread over 1, 10, 100 and 1,000 of them on one cell.

Owns that workload. Databases are drawn by Zipf's law, as customers are: few are busy, most are quiet. Reports
throughput, latency, connections to the cell, how many were opened anew meanwhile, and the memory of the service's
processes, of the cell's and of one connection of it; and before that, what an empty database takes on disk.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.loads import Measured, check_one, wrk
from bench.processes import memory_mib
from bench.stack import Stack

STEPS = (1, 10, 100, 1_000)
_ROWS = 1_000
_MAKERS = 4
_FILL = f"create table numbers as select n, n * 2 as double from generate_series(1, {_ROWS}) n"
_INDEX = "alter table numbers add primary key (n)"


@dataclass(frozen=True)
class Spread:
    """What was measured with so many databases."""

    databases: int
    measured: Measured
    connections: int
    opened_per_second: float
    worker_mib: float
    cell_mib: float
    connection_mib: float


@dataclass(frozen=True)
class Empty:
    """What a database takes on disk in which nothing is."""

    size_bytes: int
    files: int


def show(stack: Stack, most: int, connections: int, seconds: float) -> None:
    """Measures, and prints what was found."""
    found = empty(stack)
    print(f"an empty database takes {found.size_bytes / 1e6:.1f} MB in {found.files} files")
    print("databases  look-ups/s  p50 ms  p99 ms  connections  opened/s  service MiB  cell MiB  MiB of a connection")
    for spread in spread_over(stack, tuple(step for step in STEPS if step <= most), connections, seconds):
        print(
            f"{spread.databases:9}  {spread.measured.per_second:10.0f}  {spread.measured.median_us / 1000:6.1f}"
            f"  {spread.measured.p99_us / 1000:6.1f}  {spread.connections:11}"
            f"  {spread.opened_per_second:8.0f}  {spread.worker_mib:11.0f}  {spread.cell_mib:8.0f}"
            f"  {spread.connection_mib:19.1f}",
            flush=True,
        )


def empty(stack: Stack) -> Empty:
    """Makes one, and looks at it."""
    check_one(f"{stack.control_url}/v1/databases", stack.headers, json.dumps({"name": "empty"}))
    (name,) = stack.psql("select engine_name from databases where name = 'empty'", "plainsql_directory").split()
    found = f"select oid, pg_database_size(oid) from pg_database where datname = '{name}'"
    oid, size_bytes = stack.psql(found).split("|")
    folder = stack.psql("show data_directory")
    return Empty(int(size_bytes), len(list(Path(folder, "base", oid).iterdir())))


def spread_over(stack: Stack, steps: tuple[int, ...], connections: int, seconds: float) -> Iterator[Spread]:
    """Each step's figures, cold connections first opened by a load that is not counted."""
    # A cell takes a thousand databases unless somebody says otherwise, and some are there already.
    stack.psql("update cells set room = 2000", "plainsql_directory")
    made = 0
    for step in steps:
        _make(stack, range(made, step))
        made = step
        _load(stack, step, connections, seconds)
        before = _opened(stack)
        measured = _load(stack, step, connections, seconds)
        opened = (_opened(stack) - before) / seconds
        pids = _connections(stack)
        memories = memory_mib(stack.data_pid), memory_mib(stack.postgres_pid), median(map(memory_mib, pids))
        yield Spread(step, measured, len(pids), opened, *memories)


def _make(stack: Stack, numbers: range) -> None:
    with ThreadPoolExecutor(_MAKERS) as makers:
        list(makers.map(lambda number: _make_one(stack, f"bench{number}"), numbers))


def _make_one(stack: Stack, name: str) -> None:
    check_one(f"{stack.control_url}/v1/databases", stack.headers, json.dumps({"name": name}))
    for sql in (_FILL, _INDEX):
        check_one(f"{stack.data_url}/v1/query", stack.headers, json.dumps({"sql": sql, "database": name}))


def _load(stack: Stack, databases: int, connections: int, seconds: float) -> Measured:
    body = json.dumps({"sql": "select double from numbers where n = $1", "params": ["N"], "database": "D"})
    text = body.replace('"N"', "%d").replace('"D"', '"bench%d"')
    expression = f"string.format([==[{text}]==], math.random(1, {_ROWS}), zipf({databases}))"
    return wrk(f"{stack.data_url}/v1/query", stack.headers, expression, connections, seconds, head=_ZIPF)


# Draws 0 … n-1, the k-th with a probability as 1/(k+1): the inverse of the harmonic sum, by bisection.
_ZIPF = """
local sums = {}
function zipf(n)
  if not sums[n] then
    local sum, all = 0, {}
    for k = 1, n do sum = sum + 1 / k; all[k] = sum end
    sums[n] = all
  end
  local all = sums[n]
  local wanted = math.random() * all[n]
  local low, high = 1, n
  while low < high do
    local middle = math.floor((low + high) / 2)
    if all[middle] < wanted then low = middle + 1 else high = middle end
  end
  return low - 1
end
"""


def _connections(stack: Stack) -> list[int]:
    """The processes of the service's connections."""
    return [
        int(pid) for pid in stack.psql("select pid from pg_stat_activity where application_name = 'plainsql'").split()
    ]


def _opened(stack: Stack) -> int:
    """Connections to customers' databases since the cell was made. Backends tell when they end."""
    return int(stack.psql("select sum(sessions) from pg_stat_database where datname ~ '^d_'"))
