"""Ledgers: what writers wrote and when it was acknowledged, to compare with what there is after a restore.

    async with writing(endpoints) as ledger:              # what clients know
        await ledger.more()
    ledger.check_whole(rows), ledger.lost(rows, before_s)

    with writers(stage, node, names) as written:          # what the databases know
        ...
    entries(stage, name)

With `writing`, clients write over HTTPS while machines are lost. Each write is a transaction of two statements, in one
database or in two. It has an idempotency key and is repeated until it is acknowledged. Another client renames the
organization, which is a write to the directory.

With `writers`, every transaction gets the next number, and the cell knows when each was committed. A row of the table
`counter` is locked from when a transaction takes its number until it ends. So the numbers are in the order of the
commits, without a gap. A transaction over several databases has a number in each of them.
"""

import asyncio
import itertools
import random
import secrets
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from plainsql_server.core.principal import Scope
from server.tests import plain_http
from server.tests.customers import Customers
from server.tests.fleet.writers import working
from server.tests.load import Client, NoAnswer, Node
from server.tests.operations.stage import Stage

# The two halves of a write, by its kind: the database and the table.
HALVES = {"pair": (("main", "a"), ("main", "b")), "span": (("main", "c"), ("other", "c"))}
TABLES = ("a", "b", "c")
_PAUSE_S = 0.05
_TIMEOUT_MS = 10_000
_LIMIT_S = 120

# The cell keeps the time of each commit, which is what a restore at a moment goes by.
SETTINGS = {"track_commit_timestamp": "on"}
# Writers of a database pause, so that the machine is not what is tested.
_WRITERS_PAUSE_S = 0.02
_NUMBERED = """
    create table counter as select 0::bigint as last;
    create table ledger (
        seq bigint, part text, writer text, number bigint, at timestamptz default clock_timestamp(),
        primary key (seq, part)
    )
"""
_ROWS = """
    select seq, min(writer) || ' ' || min(number), count(distinct part), max(at), {} from ledger
    group by seq order by seq
"""


@dataclass
class Ledger:
    """When each write was acknowledged, in seconds since 1970, by its kind and number."""

    acknowledged: dict[str, dict[str, float]] = field(default_factory=lambda: {kind: {} for kind in HALVES})
    # The same for the names of the organization, in order.
    names: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    async def more(self, count: int = 10, *, names: int = 0) -> None:
        """Waits for so many more acknowledged writes of each kind, and names."""
        wanted = [(numbers, len(numbers) + count) for numbers in self.acknowledged.values()]
        wanted.append((self.names, len(self.names) + names))
        async with asyncio.timeout(_LIMIT_S):
            while any(len(numbers) < number for numbers, number in wanted):  # noqa: ASYNC110  # other tasks work
                await asyncio.sleep(0.02)

    def copied(self) -> "Ledger":
        """What is acknowledged by now."""
        kinds = {kind: dict(numbers) for kind, numbers in self.acknowledged.items()}
        return Ledger(kinds, dict(self.names), Counter(self.failures))

    def check_whole(self, rows: Mapping[tuple[str, str], Sequence[str]]) -> None:
        """Each write is there once in both tables, or in none; and there are some."""
        for kind, (one, other) in HALVES.items():
            doubled = [number for half in (one, other) for number, count in Counter(rows[half]).items() if count > 1]
            assert rows[one], f"no {kind} was written"
            assert not doubled, f"doubled {kind}: {doubled[:5]}"
            halves = set(rows[one]) ^ set(rows[other])
            assert not halves, f"half a {kind}: {sorted(halves)[:5]}"

    def lost(self, rows: Mapping[tuple[str, str], Sequence[str]], before_s: float) -> int:
        """How many acknowledged writes are not there. Nothing that was acknowledged before this time may be missing."""
        assert all(self.acknowledged.values()), "nothing was acknowledged"
        found = {kind: set(rows[one]) for kind, (one, _) in HALVES.items()}
        gone = {
            number: at_s
            for kind, numbers in self.acknowledged.items()
            for number, at_s in numbers.items()
            if number not in found[kind]
        }
        early = {number: at_s - before_s for number, at_s in gone.items() if at_s < before_s}
        assert not early, f"acknowledged before the restored moment, and lost: {early}"
        return len(gone)


@dataclass(frozen=True)
class Endpoints:
    """Where clients ask, with which key, and what they trust."""

    data_port: int
    control_port: int
    key: str
    trust: ssl.SSLContext


@asynccontextmanager
async def writing(where: Endpoints) -> AsyncIterator[Ledger]:
    """Clients at work for the length of the block."""
    ledger, stop = Ledger(), asyncio.Event()
    # No two ledgers have the same.
    numbers = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
    tasks = [asyncio.create_task(_write(where, ledger, kind, stop, numbers)) for kind in (*HALVES, "pair")]
    tasks.append(asyncio.create_task(_rename(where, ledger, stop, numbers)))
    async with working(tasks, stop):
        yield ledger


async def _write(where: Endpoints, ledger: Ledger, kind: str, stop: asyncio.Event, numbers: Iterator[str]) -> None:
    async with Client(where.data_port, where.key, trust=where.trust) as client:
        while not stop.is_set():
            number, idempotency_key = next(numbers), secrets.token_hex(8)
            statements = [
                {"database": database, "sql": f"insert into {table} values ($1)", "params": [number]}
                for database, table in HALVES[kind]
            ]
            # One that is decided waits for its cells until then.
            body = {"statements": statements, "timeout_ms": _TIMEOUT_MS}
            while not await _succeeds(client, ledger, "/v1/transaction", body, idempotency_key=idempotency_key):
                if stop.is_set():
                    return
                await asyncio.sleep(_PAUSE_S)
            ledger.acknowledged[kind][number] = time.time()
            await asyncio.sleep(_PAUSE_S / 5)


async def _rename(where: Endpoints, ledger: Ledger, stop: asyncio.Event, numbers: Iterator[str]) -> None:
    async with Client(where.control_port, where.key, trust=where.trust) as client:
        while True:
            name = next(numbers)
            body = {"name": name}
            while not await _succeeds(client, ledger, "/v1/organizations/current", body, method="PATCH"):
                if stop.is_set():
                    return
                await asyncio.sleep(_PAUSE_S)
            ledger.names[name] = time.time()
            if stop.is_set():
                return
            await asyncio.sleep(_PAUSE_S)


async def _succeeds(client: Client, ledger: Ledger, path: str, body: dict[str, Any], **options: str) -> bool:
    try:
        await client.post(path, body, **options)
        answer = await client.answer()
    except (NoAnswer, OSError, TimeoutError) as error:
        ledger.failures[type(error).__name__] += 1
        client.drop()
        return False
    if answer.status != 200 or not answer.body["success"]:
        ledger.failures[f"{answer.status} {answer.body['error']['code']}"] += 1
        return False
    return True


@dataclass(frozen=True)
class Written:
    """One transaction, by the clock that it and its cell share. One without an answer may be there or not."""

    databases: tuple[str, ...]
    name: str
    sent_at: datetime
    acknowledged_at: datetime | None


@dataclass(frozen=True)
class Entry:
    """A transaction as a database has it."""

    seq: int
    name: str
    parts: int
    written_at: datetime
    committed_at: datetime | None
    """By the cell's clock. A restored database does not know it."""


def make_ledger(stage: Stage, name: str) -> None:
    stage.run("database", "create", "--org", "acme", name)
    with stage.owner(name) as owner:
        owner.execute(_NUMBERED.encode())


def entries(stage: Stage, name: str, *, restored: bool = False) -> list[Entry]:
    """What is in a ledger, in its order. Fails if a number is missing, or one too many."""
    committed = "null" if restored else "max(pg_xact_commit_timestamp(xmin))"
    with stage.owner(name) as owner:
        rows = owner.execute(_ROWS.format(committed).encode()).fetchall()
        (last,) = owner.execute("select last from counter").fetchone() or (None,)
    found = [Entry(*row) for row in rows]
    assert [each.seq for each in found] == list(range(1, len(found) + 1)), "there is a gap"
    assert last == len(found), "the counter and the entries are of different times"
    assert {each.parts for each in found} <= {2}, "a transaction is there in part"
    return found


def statements(name: str) -> list[str]:
    """What one transaction does in a ledger."""
    writer, number = name.split()
    entry = "insert into ledger (seq, part, writer, number) select last, '{}', '{}', {} from counter"
    return [
        "update counter set last = last + 1",
        *(entry.format(part, writer, int(number)) for part in ("first", "second")),
    ]


def new_key(stage: Stage) -> str:
    return Customers(stage.dsn).new_key(Scope.WRITE, organization="acme")


def write_over_both(node: Node, key: str, databases: Sequence[str], name: str) -> Written:
    """One transaction over several ledgers, through the service."""
    listed = [{"database": database, "sql": each} for database in databases for each in statements(name)]
    sent_at = datetime.now(UTC)
    answer = plain_http.post(
        f"http://127.0.0.1:{node.port}/v1/transaction",
        headers={"Authorization": f"Bearer {key}"}, json={"statements": listed, "timeout_ms": 25_000},
    )  # fmt: skip
    done_at = datetime.now(UTC) if answer.json()["success"] else None
    return Written(tuple(databases), name, sent_at, done_at)


def _write_numbered(stage: Stage, database: str, ended: threading.Event) -> Iterator[Written]:
    number = 0
    with stage.owner(database) as owner:
        while not ended.wait(_WRITERS_PAUSE_S):
            name, sent_at = f"{database} {number}", datetime.now(UTC)
            with owner.transaction():
                for each in statements(name):
                    owner.execute(each.encode())
            yield Written((database,), name, sent_at, datetime.now(UTC))
            number += 1


def _write_spanning(node: Node, key: str, names: Sequence[str], ended: threading.Event) -> Iterator[Written]:
    chance, number = random.Random(1), 0
    while not ended.wait(_WRITERS_PAUSE_S):
        yield write_over_both(node, key, chance.sample(names, 2), f"spanning {number}")
        number += 1


@contextmanager
def writers(stage: Stage, node: Node, names: Sequence[str]) -> Iterator[list[Written]]:
    """One writer in each ledger, and one over two of them at a time, for the length of the block.

    Yields what they wrote, which is complete after the block.
    """
    ended, written, key = threading.Event(), list[Written](), new_key(stage)
    with ThreadPoolExecutor(len(names) + 1) as pool:
        running = [pool.submit(list[Written], _write_numbered(stage, name, ended)) for name in names]
        running.append(pool.submit(list[Written], _write_spanning(node, key, names, ended)))
        try:
            yield written
        finally:
            ended.set()
        for each in running:
            written += each.result()
