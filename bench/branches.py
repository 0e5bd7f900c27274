"""What a branch costs: the time to make it, how long requests to its parent wait meanwhile, and the disk that it takes.

    missed = show(stack, Plan(sizes_mb=(10, 1000), rounds=3))

A reader and a writer use the parent all the time, each over one connection. Their longest request while a branch is
made is the stop. What their requests take without a branch is measured before, in the same round.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from bench.bars import BRANCH_BARS, FAILED, STOP_S, Bars, missed, verdict
from bench.stack import Stack

_MB = 1024 * 1024
_ROW_BYTES = 1_000
# One statement adds so many rows, so that it ends long before its deadline.
_ROWS_AT_ONCE = 50_000
_FILL = """
    insert into filled select g, repeat(md5(g::text), {repeats}) from generate_series({first}::int, {last}::int) g
"""
_READ = "select length(b) from filled where a = 1"
_WRITE = "insert into written values (1)"
# How long the clients are measured without a branch.
_ALONE_S = 1.0
# Requests that waited for the branch may end a little after it.
_AFTER_S = 0.5
_TIMEOUT_S = 60.0
_BUSY = 503
_ATTEMPTS = 5


@dataclass(frozen=True)
class Plan:
    """What to measure: branches of parents with so many megabytes of rows."""

    sizes_mb: Sequence[int]
    rounds: int


@dataclass
class Client:
    """One that sends the same statement to the parent again and again, and notes what each request took."""

    stack: Stack
    database: str
    sql: str
    took_s: list[float] = field(default_factory=list)
    failed: int = 0

    def run(self, ended: threading.Event) -> None:
        connection = _connection(self.stack.data_url)
        body = {"sql": self.sql, "database": self.database}
        try:
            while not ended.is_set():
                began_s = time.monotonic()
                status, answer = _asked(connection, self.stack, "POST", "/v1/query", body)
                self.took_s.append(time.monotonic() - began_s)
                self.failed += status != http.client.OK or not answer["success"]
        finally:
            connection.close()


@dataclass(frozen=True)
class Made:
    """One branch."""

    made_s: float
    # The longest request of each client, and of both without a branch.
    reader_s: float
    writer_s: float
    alone_s: float
    failed: int
    # What the copy takes on the disk, and what making it wrote to the WAL.
    disk_mb: float
    wal_mb: float

    @property
    def stop_s(self) -> float:
        return max(self.reader_s, self.writer_s)


def show(stack: Stack, plan: Plan) -> list[str]:
    """Measures, and prints a line for each size. Returns which figures miss their bars."""
    print(f"{'rows':>8}  {'parent':>8}  {'made in s':>20}  {'stop s, reader':>20}  {'stop s, writer':>20}"
          "  alone s  disk MB  WAL MB")  # fmt: skip
    below: list[str] = []
    for size_mb in plan.sizes_mb:
        parent_mb, made = measure(stack, size_mb, plan.rounds)
        below += _print_line(size_mb, parent_mb, made)
    return below


def measure(stack: Stack, size_mb: int, rounds: int) -> tuple[float, list[Made]]:
    """The size of a parent with so much content, and what each of so many branches of it took."""
    parent = f"parent{size_mb}"
    control = _connection(stack.control_url)
    data = _connection(stack.data_url)
    try:
        _ask(control, stack, "POST", "/v1/databases", {"name": parent})
        _fill(data, stack, parent, size_mb)
        parent_mb = _size_mb(stack, parent)
        made = []
        for number in range(rounds):
            made.append(_make_one(control, stack, parent, f"{parent}-{number}"))
        return parent_mb, made
    finally:
        control.close()
        data.close()


def bars_of(size_mb: int) -> Bars:
    return BRANCH_BARS.get(size_mb, {})


def _print_line(size_mb: int, parent_mb: float, made: Sequence[Made]) -> list[str]:
    found: Mapping[str, float] = {
        STOP_S: max(each.stop_s for each in made), FAILED: sum(each.failed for each in made)
    }  # fmt: skip
    bars = bars_of(size_mb)
    misses = missed(found, bars)
    columns = [
        _spread([each.made_s for each in made]), _spread([each.reader_s for each in made]),
        _spread([each.writer_s for each in made]), f"{median(each.alone_s for each in made):7.3f}",
        f"{median(each.disk_mb for each in made):7.0f}", f"{median(each.wal_mb for each in made):6.0f}",
    ]  # fmt: skip
    print(f"{size_mb:5} MB  {parent_mb:5.0f} MB  {'  '.join(columns)}  {verdict(misses, bars)}", flush=True)
    return misses


def _spread(values: Sequence[float]) -> str:
    """The median, with the smallest and the largest."""
    return f"{median(values):6.2f} ({min(values):.2f} to {max(values):.2f})".rjust(20)


def _make_one(control: http.client.HTTPConnection, stack: Stack, parent: str, name: str) -> Made:
    with _working(stack, parent) as (reader, writer):
        time.sleep(_ALONE_S)
        alone_s = max(*reader.took_s, *writer.took_s)
        since = len(reader.took_s), len(writer.took_s)
        wal, began_s = _wal_bytes(stack), time.monotonic()
        _branch(control, stack, parent, name)
        made_s = time.monotonic() - began_s
        written = _wal_bytes(stack) - wal
        time.sleep(_AFTER_S)
    return Made(
        made_s, max(reader.took_s[since[0] :]), max(writer.took_s[since[1] :]), alone_s,
        reader.failed + writer.failed, _size_mb(stack, name), written / _MB,
    )  # fmt: skip


def _branch(control: http.client.HTTPConnection, stack: Stack, parent: str, name: str) -> None:
    """Asks again if the service says that the parent is busy, as a customer does."""
    body = {"name": name, "branch_of": parent}
    status, answer = _asked(control, stack, "POST", "/v1/databases", body)
    attempts = 1
    while status == _BUSY and attempts < _ATTEMPTS:
        time.sleep(1)
        status, answer = _asked(control, stack, "POST", "/v1/databases", body)
        attempts += 1
    if status != http.client.CREATED:
        raise SystemExit(f"the branch was not made: {answer}")


@contextmanager
def _working(stack: Stack, database: str) -> Iterator[tuple[Client, Client]]:
    """A reader and a writer at work during the block."""
    clients, ended = (Client(stack, database, _READ), Client(stack, database, _WRITE)), threading.Event()
    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(each.run, ended) for each in clients]
        try:
            yield clients
        finally:
            ended.set()
        for each in running:
            each.result()


def _fill(data: http.client.HTTPConnection, stack: Stack, database: str, size_mb: int) -> None:
    def run(sql: str) -> None:
        _ask(data, stack, "POST", "/v1/query", {"sql": sql, "database": database})

    run("create table filled (a int primary key, b text not null)")
    run("create table written (a int not null)")
    rows = size_mb * _MB // _ROW_BYTES
    for first in range(1, rows + 1, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE - 1, rows)
        run(_FILL.format(repeats=_ROW_BYTES // 32, first=first, last=last))
    stack.psql("checkpoint", "postgres")


def _size_mb(stack: Stack, database: str) -> float:
    name = stack.psql(
        f"select engine_name from databases where name = '{database}' and state = 'ready'", "plainsql_directory"
    )
    return int(stack.psql(f"select pg_database_size('{name}')", "postgres")) / _MB


def _wal_bytes(stack: Stack) -> int:
    return int(stack.psql("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')", "postgres"))


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        # The certificate is the stack's own, made a moment ago.
        trusting = ssl._create_unverified_context()
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=trusting)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)


def _asked(
    connection: http.client.HTTPConnection, stack: Stack, method: str, path: str, body: Mapping[str, Any]
) -> tuple[int, Any]:
    connection.request(method, path, json.dumps(body), dict(stack.headers))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def _ask(connection: http.client.HTTPConnection, stack: Stack, method: str, path: str, body: Mapping[str, Any]) -> None:
    """Refuses to measure failures."""
    status, answer = _asked(connection, stack, method, path, body)
    if status not in (http.client.OK, http.client.CREATED) or not answer["success"]:
        raise SystemExit(f"{method} {path} failed: {answer}")
