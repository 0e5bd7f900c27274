"""Random list-append transactions, sent by many clients at once, and the history of what they saw.

Owns what is sent and what is recorded. There are two tables for the same lists: one has a row for each list, which
appends contend for; one has a row for each value, so that a read is of all rows that there may be.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from server.tests.consistency.checker import Report, check
from server.tests.consistency.history import Append, History, Operation, Outcome, Read, Transaction, save
from server.tests.consistency.transports import HttpTransport, Reply, Statement, Transport

# So many lists are in use at a time, and each until it has so many values: enough to contend for, short to read.
ACTIVE_LISTS = 10
LIST_LENGTH = 24
OPERATIONS_MAX = 4
# Lists that one transaction of the last reading reads.
_LAST_READS = 50
# How often the last reading is tried, should the service still be busy with a fault.
_LAST_TRIES = 100
_PAUSE_S = 0.02
# Of the transactions of a single operation, this share goes to /v1/query.
_ALONE_SHARE = 0.5
# Of the others, this share pauses after the first operation. A transaction that is sent whole is over so soon that it
# would rarely meet another; these meet several.
_PAUSE_SHARE = 0.3
_PAUSE = Statement("select pg_sleep(0.003)")

_WORDS = {Outcome.OK: "committed", Outcome.FAIL: "failed", Outcome.INFO: "unknown"}


@dataclass(frozen=True)
class Table:
    """How lists are kept in SQL. `$1` is the list, `$2` the value."""

    name: str
    create: tuple[str, ...]
    append: str
    read: str
    values_of: Callable[[Sequence[Sequence[Any]]], tuple[int, ...]]

    def make_anew(self, dsn: str) -> None:
        """Makes the table, empty, for every role."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"drop table if exists {self.name}".encode())
            for statement in self.create:
                admin.execute(statement.encode())
            admin.execute(f"grant all on {self.name} to public".encode())


# A row for each list.
ARRAYS = Table(
    "lists",
    ("create table lists (k int primary key, v int[] not null)",),
    "insert into lists values ($1::int, array[$2::int]) on conflict (k) do update set v = lists.v || excluded.v",
    "select v from lists where k = $1::int",
    lambda rows: tuple(rows[0][0]) if rows else (),
)
# A row for each value. Nothing but the isolation keeps two appends from taking the same place.
ROWS = Table(
    "items",
    (
        "create table items (k int not null, place int not null, v int not null)",
        "create index items_of_a_list on items (k, place)",
    ),
    "insert into items select $1::int, coalesce(max(place), 0) + 1, $2::int from items where k = $1::int",
    "select v from items where k = $1::int order by place, v",
    lambda rows: tuple(row[0] for row in rows),
)


class Lists:
    """Which lists are in use, and which value is next in each."""

    def __init__(self, seed: int, active: int = ACTIVE_LISTS) -> None:
        self._chance = random.Random(seed)
        self._active = list(range(active))
        self._next_value = Counter[int]()
        self.used = active

    def plan(self) -> tuple[Operation, ...]:
        """A transaction, whose reads are still to be made."""
        return tuple(self._operation() for _ in range(self._chance.randint(1, OPERATIONS_MAX)))

    def has_luck(self, share: float) -> bool:
        return self._chance.random() < share

    def _operation(self) -> Operation:
        place = self._chance.randrange(len(self._active))
        key = self._active[place]
        if self._chance.random() < 0.5:
            return Read(key, None)
        self._next_value[key] += 1
        if self._next_value[key] >= LIST_LENGTH:
            self._active[place] = self.used
            self.used += 1
        return Append(key, self._next_value[key])


@dataclass
class Workload:
    """A run: clients send transactions at once, and everything is written down."""

    table: Table
    transports: Sequence[Transport]
    lists: Lists = field(default_factory=lambda: Lists(seed=1))
    history: History = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    committed: int = 0
    attempts: int = 0
    elapsed_s: float = 0.0
    # What a client waits between two transactions.
    think_s: float = 0.0
    _numbers: int = 0

    async def run(self, enough: Callable[[], bool], limit_s: float) -> None:
        """Sends until it is enough, and reads every list in the end."""
        began_s = time.monotonic()
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for process, transport in enumerate(self.transports):
                group.create_task(self._send_until(enough, process, transport))
        self.elapsed_s = time.monotonic() - began_s
        await self._read_everything()
        for transport in self.transports:
            await transport.close()

    async def _send_until(self, enough: Callable[[], bool], process: int, transport: Transport) -> None:
        while not enough():
            reply = await self._send(process, transport, self.lists.plan())
            if reply.outcome is not Outcome.OK and not reply.complaint:
                # As a polite client would, though sooner.
                await asyncio.sleep(_PAUSE_S)
            elif self.think_s:
                await asyncio.sleep(self.think_s)

    async def _send(self, process: int, transport: Transport, plan: tuple[Operation, ...]) -> Reply:
        self._numbers += 1
        number = self._numbers
        invoked_ns = time.monotonic_ns()
        reply, done = await self._carry_out(transport, plan)
        completed_ns = time.monotonic_ns()
        self.history.append(
            Transaction(number, process, reply.outcome, invoked_ns, completed_ns, done, reply.is_committed)
        )
        self._count(reply)
        return reply

    async def _carry_out(
        self, transport: Transport, plan: tuple[Operation, ...]
    ) -> tuple[Reply, tuple[Operation, ...]]:
        """Has a transaction carried out. The reply, and the operations with what they read."""
        statements = [self._statement(operation) for operation in plan]
        if len(plan) == 1 and isinstance(transport, HttpTransport) and self.lists.has_luck(_ALONE_SHARE):
            reply = await transport.run_alone(statements[0])
        elif self.lists.has_luck(_PAUSE_SHARE):
            pause = replace(_PAUSE, database=statements[0].database)
            reply = await transport.run([statements[0], pause, *statements[1:]])
            reply = replace(reply, rows=reply.rows[:1] + reply.rows[2:])
        else:
            reply = await transport.run(statements)
        if reply.outcome is Outcome.OK:
            plan = tuple(self._done(operation, rows) for operation, rows in zip(plan, reply.rows, strict=True))
        return reply, plan

    def _statement(self, operation: Operation) -> Statement:
        if isinstance(operation, Append):
            return Statement(self.table.append, (operation.key, operation.value))
        return Statement(self.table.read, (operation.key,))

    def _done(self, operation: Operation, rows: list[list[Any]]) -> Operation:
        return operation if isinstance(operation, Append) else Read(operation.key, self.table.values_of(rows))

    def _count(self, reply: Reply) -> None:
        self.codes[reply.code or "ok"] += 1
        if reply.complaint:
            self.complaints.append(reply.complaint)
        if reply.outcome is Outcome.OK:
            self.committed += 1
            self.attempts += reply.attempts

    async def _read_everything(self) -> None:
        """Reads each list once more, so that what is lost is missed."""
        for first in range(0, self.lists.used, _LAST_READS):
            keys = range(first, min(first + _LAST_READS, self.lists.used))
            for _ in range(_LAST_TRIES):
                reply = await self._send(-1, self.transports[0], tuple(Read(key, None) for key in keys))
                if reply.outcome is Outcome.OK:
                    break
                await asyncio.sleep(_PAUSE_S)
            else:
                raise AssertionError(f"the lists cannot be read in the end: {self.codes}")

    def check_history(self, name: str) -> Report:
        """The checker's report, after a line that says what was judged."""
        began_s = time.monotonic()
        report = check(self._as_lists())
        judged_s = time.monotonic() - began_s
        outcomes = ", ".join(f"{report.outcomes[outcome]} {word}" for outcome, word in _WORDS.items())
        rate = f"{self.committed / self.elapsed_s:.0f} committed/s, {self.attempts / self.committed:.2f} attempts each"
        print(
            f"\n{name}: {outcomes}; {rate}; {dict(self.codes)}; {report.edge_count} edges judged in {judged_s:.1f} s;"
            f" anomalies {report.counts() or 0}"
        )
        return report

    def _as_lists(self) -> History:
        """The history in the terms of the checker."""
        return self.history

    def require_clean(self, report: Report) -> None:
        """Fails if there is an anomaly, and keeps the history that has it."""
        assert self.complaints == []
        if report.anomalies:
            kept = Path(tempfile.mkdtemp(prefix="plainsql-history-")) / "history.jsonl"
            save(self.history, kept)
            raise AssertionError(f"{report.describe()}\nThe history is in {kept}.")
