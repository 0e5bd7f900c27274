"""Two cells with a database each, a directory apart from them, both planes, and list-append over both databases.

Owns what tests of transactions that span databases start from, and what is known in the end: the lists as they are
stored, and what is left in doubt.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from plainsql_server.control_plane import cells, databases, keys, organizations
from plainsql_server.core.principal import Scope
from plainsql_server.data_plane.spanning import SpanningStep
from plainsql_server.directory.connection import Directory
from server.tests.cell import Cell
from server.tests.consistency.history import Append, History, Operation, Outcome, Read, Transaction
from server.tests.consistency.transports import DEADLOCK_TIMEOUT_MS, HttpTransport, Reply, Statement, Transport
from server.tests.consistency.workload import ACTIVE_LISTS, ARRAYS, LIST_LENGTH, OPERATIONS_MAX, Lists, Workload
from server.tests.end_to_end.control import running_control
from server.tests.load import Answer, Client, Node, running_node
from server.tests.postgres import SUPERUSER, running_postgres
from server.tests.processes import wait_for

SIDES = ("left", "right")
CRASHING = "server.tests.consistency.crashing"
# Instead of 5 s, so that the next transaction does not wait long for the recovery from each crash.
HOLD_S = 1.0
_SPANNING_SHARE = 0.25


@dataclass(frozen=True)
class TwoCells:
    """Cells that tests may kill, in the order of SIDES, and the names of the databases on them."""

    cells: tuple[Cell, Cell]
    names: tuple[str, str]
    directory: Cell
    directory_dsn: str
    key: str
    crash_file: Path

    def prepared(self) -> list[str]:
        found: list[str] = []
        for cell in self.cells:
            with cell.postgres.connect() as admin:
                found += [gid for (gid,) in admin.execute("select gid from pg_prepared_xacts")]
        return found

    def records(self) -> int:
        """Records that are not freed."""
        with psycopg.connect(self.directory_dsn) as directory:
            rows = directory.execute("select from spanning_transactions where freed_at is null").fetchall()
        return len(rows)

    def wait_until_settled(self, limit_s: float) -> float:
        """Returns the seconds until nothing is in doubt any more."""
        began_s = time.monotonic()
        wait_for(
            lambda: not self.prepared() and not self.records(), limit_s,
            lambda: f"in doubt after {limit_s} s: {self.prepared()}, {self.records()} records",
        )  # fmt: skip
        return time.monotonic() - began_s

    @contextmanager
    def holding(self, step: SpanningStep) -> Iterator[Callable[[], bool]]:
        """Processes that reach that step pause until the end of the block. Tells whether one does."""
        with holding(self.crash_file, step) as is_held:
            yield is_held

    def lists(self) -> dict[int, list[int]]:
        """Every list as it is stored."""
        found: dict[int, list[int]] = {}
        for cell, name in zip(self.cells, self.names, strict=True):
            with cell.postgres.connect(database=name) as admin:
                found |= dict(admin.execute("select k, v from lists").fetchall())
        return found

    def make_tables(self) -> None:
        for cell, name in zip(self.cells, self.names, strict=True):
            with cell.postgres.connect(database=name) as admin:
                admin.execute("drop table if exists lists")
                for statement in ARRAYS.create:
                    admin.execute(statement.encode())
                admin.execute("grant all on all tables in schema public to public")


@contextmanager
def holding(crash_file: Path, step: SpanningStep) -> Iterator[Callable[[], bool]]:
    """The same, for a data plane that is configured with that file."""
    held = crash_file.with_suffix(".held")
    held.unlink(missing_ok=True)
    crash_file.write_text(f"HOLD {step.name}")
    try:
        yield held.exists
    finally:
        # Where nobody came, nobody may stand still later.
        crash_file.unlink(missing_ok=True)
        held.unlink(missing_ok=True)


@contextmanager
def two_cells() -> Iterator[TwoCells]:
    """For the length of the block, with a control plane."""
    with running_postgres() as directory, running_postgres() as left, running_postgres() as right:
        dsn = directory.fresh_directory()
        for each in (left, right):
            with each.connect() as admin:
                admin.execute(f"alter system set deadlock_timeout = {DEADLOCK_TIMEOUT_MS}".encode())
                admin.execute("select pg_reload_conf()")
        key, names = asyncio.run(_provision(dsn, left.conninfo, right.conninfo))
        with tempfile.TemporaryDirectory(prefix="plainsql-test-") as folder, running_control(dsn):
            pair = (Cell(left, dsn, key), Cell(right, dsn, key))
            yield TwoCells(pair, names, Cell(directory, dsn, key), dsn, key, Path(folder) / "crash")


async def _provision(dsn: str, *conninfos: str) -> tuple[str, tuple[str, str]]:
    async with Directory.open(dsn) as directory:
        organization = await organizations.create(directory, "acme", "dedicated")
        names = []
        for side, conninfo in zip(SIDES, conninfos, strict=True):
            await cells.add(directory, side, conninfo, SUPERUSER)
            # The cell that is new has the fewest.
            names.append((await databases.create(directory, organization.id, side)).engine_name)
        _, secret = await keys.create(directory, organization.id, "test", (Scope.WRITE,))
        return secret.text, (names[0], names[1])


@contextmanager
def serving(two: TwoCells, **settings: object) -> Iterator[Node]:
    """A data plane that can be made to die."""
    configured = {"workers": 2, "test_crash_file": two.crash_file, "test_hold_s": HOLD_S, **settings}
    with running_node(two.directory_dsn, CRASHING, cell_max_connections=24, **configured) as node:
        yield node


async def send(
    node: Node, two: TwoCells, number: int, timeout_ms: int = 3_000, more: tuple[dict[str, Any], ...] = ()
) -> Answer:
    """The answer to a transaction that makes a list of that number on both sides, and does more."""
    appends = [{"database": side, "sql": f"insert into lists values ({number}, array[1])"} for side in SIDES]
    async with node.client(two.key) as client:
        await client.post("/v1/transaction", {"statements": [*appends, *more], "timeout_ms": timeout_ms})
        return await client.answer()


def stored(two: TwoCells, number: int) -> list[bool]:
    """Whether each side has it."""
    found = []
    for cell, name in zip(two.cells, two.names, strict=True):
        with cell.postgres.connect(database=name) as admin:
            found.append(bool(admin.execute("select from lists where k = %s", (number,)).fetchall()))
    return found


def side_of(key: int) -> str:
    return SIDES[key % 2]


class SidedLists(Lists):
    """Lists with even numbers are on the left, the others on the right. Most transactions stay on one side."""

    def plan(self) -> tuple[Operation, ...]:
        count = self._chance.randint(1, OPERATIONS_MAX)
        if self.has_luck(_SPANNING_SHARE):
            first = self._chance.randrange(2)
            return (self._on(first), self._on(1 - first), *(self._operation() for _ in range(count - 1)))
        side = self._chance.randrange(2)
        return tuple(self._on(side) for _ in range(count))

    def _on(self, side: int) -> Operation:
        """An operation of one side. Places keep their side, because so many lists are in use as is even."""
        return self._operation_at(2 * self._chance.randrange(ACTIVE_LISTS // 2) + side)

    def _operation(self) -> Operation:
        return self._operation_at(self._chance.randrange(ACTIVE_LISTS))

    def _operation_at(self, place: int) -> Operation:
        key = self._active[place]
        if self._chance.random() < 0.5:
            return Read(key, None)
        self._next_value[key] += 1
        if self._next_value[key] >= LIST_LENGTH:
            # The next list of the same side; a number may be left out by that.
            self._active[place] = self.used + (self.used + place) % 2
            self.used = self._active[place] + 1
        return Append(key, self._next_value[key])


@dataclass
class SpanningWorkload(Workload):
    """Counts what spans and what does not."""

    spanning: int = 0
    local: int = 0

    async def _send(self, process: int, transport: Transport, plan: tuple[Operation, ...]) -> Reply:
        reply = await super()._send(process, transport, plan)
        if reply.outcome is Outcome.OK and process >= 0:
            if spans(plan):
                self.spanning += 1
            else:
                self.local += 1
        return reply

    def _statement(self, operation: Operation) -> Statement:
        made = super()._statement(operation)
        return Statement(made.sql, made.params, side_of(operation.key))


def spans(operations: tuple[Operation, ...]) -> bool:
    return len({operation.key % 2 for operation in operations}) > 1


def new_workload(two: TwoCells, port: int, clients: int, **fields: Any) -> SpanningWorkload:
    two.make_tables()
    transports = [HttpTransport(Client(port, two.key), **fields) for _ in range(clients)]
    return SpanningWorkload(ARRAYS, transports, SidedLists(seed=1))


def projected(history: History, side: int) -> History:
    """What of a history happened in one database."""
    found = []
    for each in history:
        operations = tuple(operation for operation in each.operations if operation.key % 2 == side)
        if operations:
            found.append(
                Transaction(each.id, each.process, each.outcome, each.invoked_ns, each.completed_ns, operations)
            )
    return found


def torn(history: History, lists: dict[int, list[int]]) -> list[str]:
    """Transactions of which one part is stored and another is not, or whose outcome was reported wrongly."""
    found = []
    for each in history:
        appends = [operation for operation in each.operations if isinstance(operation, Append)]
        stored = [append.value in lists.get(append.key, []) for append in appends]
        reported = {Outcome.OK: {True}, Outcome.FAIL: {False}}.get(each.outcome, {True, False})
        allowed = {True} if each.is_committed else reported
        if appends and (len(set(stored)) > 1 or stored[0] not in allowed):
            found.append(each.describe())
    return found
