"""Interactive transactions: what reads after writes cost, what happens at the cap, and rates beside psycopg.

    show(stack, Plan(rounds=5, seconds=4, clients=4))

Both sides run the same Python functions, serializable, on the same engine and on rows drawn at random; after a
conflict, both call the function again. psycopg keeps its connections and has the planner's settings of the service. In
each round the sides take turns, so the ratio of a round says most.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import psycopg

import plainsql
from bench.report import Line, print_line
from bench.stack import Stack
from bench.workloads import PLANNER, ROWS_PER_SCALE
from plainsql.client import Client
from plainsql.interactive.session import InteractiveSession
from plainsql.interactive.unit import MAX_VERIFIED_READS
from plainsql.settings import resolve
from plainsql.transport.protocol import DEFAULT_TIMEOUT_S, Core, Options
from plainsql.transport.wire import Steps

READS = (10, 50, 100, 200)
# What is read after each insert: the row by its key, and all rows, among them the dead ones of earlier rehearsals.
_ROW, _COUNT = "the row", "a count"
_READ = "select abalance from pgbench_accounts where aid = $1"
_CHANGE = "update pgbench_accounts set abalance = $1 where aid = $2"
_TABLE = "bench_units"
# Rows that a unit of ten statements reads and changes.
_PAIRS = 5


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int
    seconds: float
    clients: int
    reads: Sequence[int] = READS
    rows: int = ROWS_PER_SCALE


class Transacts(Protocol):
    """A transaction of either side: runs a statement and returns its first value, if it returns rows."""

    def __call__(self, sql: str, *params: Any) -> Any: ...


Work = Callable[[Transacts], None]
# Calls the function in a transaction, again after a conflict, and commits.
Runs = Callable[[Work], None]


@dataclass
class Cost:
    """What one unit with so many reads after writes took, in each round."""

    kind: str
    reads: int
    requests: int = 0
    statements: int = 0
    seconds: list[float] = field(default_factory=list)


class CountingCore(Core):
    """Counts the requests and the statements of interactive transactions."""

    requests = 0
    statements = 0

    def rehearsal(self, statements: Sequence[Mapping[str, Any]], *arguments: Any) -> Steps[Any]:
        self._count(statements)
        return super().rehearsal(statements, *arguments)

    def transaction(self, statements: Sequence[Mapping[str, Any]], *arguments: Any) -> Steps[Any]:
        self._count(statements)
        return super().transaction(statements, *arguments)

    def _count(self, statements: Sequence[Mapping[str, Any]]) -> None:
        self.requests += 1
        self.statements += len(statements)


def show(stack: Stack, plan: Plan) -> list[Line]:
    """Measures everything and prints it. Returns the lines of the rates."""
    with plainsql.connect(stack.data_url, stack.api_key) as client:
        client.query(f"create table {_TABLE} (id bigint generated always as identity primary key, n int)")
        _show_costs(client, plan)
        print(f"\nA write after {MAX_VERIFIED_READS + 1} reads: {cap_error(client)}\n", flush=True)
    lines = []
    for name, make in (("get, change, commit", get_change), ("10 statements", ten_statements)):
        for clients in sorted({1, plan.clients}):
            lines.append(compare(stack, plan, f"{name}, {clients} at once", make, clients))
            print_line(lines[-1])
    return lines


def _show_costs(client: Client, plan: Plan) -> None:
    costs = [Cost(kind, reads) for kind in (_ROW, _COUNT) for reads in plan.reads]
    for _ in range(plan.rounds):
        for cost in costs:
            read_after_writes(client, cost)
    print("after each insert   reads   requests   statements   seconds (smallest to largest)")
    for cost in costs:
        seconds = f"{median(cost.seconds):.2f} ({min(cost.seconds):.2f} to {max(cost.seconds):.2f})"
        print(f"{cost.kind:17}   {cost.reads:5}   {cost.requests:8}   {cost.statements:10}   {seconds}", flush=True)


def read_after_writes(client: Client, cost: Cost) -> None:
    """One unit that inserts a row and reads it, or counts the rows, in turn, and commits."""
    client.query(f"truncate {_TABLE}")
    core = CountingCore(client.settings, DEFAULT_TIMEOUT_S)
    session = InteractiveSession(core, Options())
    began_s = time.perf_counter()
    for number in range(cost.reads):
        inserted = client.perform(session.query(f"insert into {_TABLE} (n) values ($1) returning id", [number])).value()
        if cost.kind == _ROW:
            read = client.perform(session.query(f"select n + 1 from {_TABLE} where id = $1", [inserted])).value()
        else:
            read = client.perform(session.query(f"select count(*) from {_TABLE}", [])).value()
        if read != number + 1:
            raise SystemExit(f"the unit read {read} instead of {number + 1}")
    client.perform(session.commit())
    cost.seconds.append(time.perf_counter() - began_s)
    cost.requests, cost.statements = core.requests, core.statements


def cap_error(client: Client) -> str:
    """What a write says after one read too many."""
    mine = client.transaction()
    for number in range(MAX_VERIFIED_READS + 1):
        mine.query(_READ, number)
    try:
        mine.query(f"insert into {_TABLE} (n) values (1)")
    except plainsql.Error as error:
        return f"{type(error).__name__}: {error}"
    raise SystemExit("a write was allowed after too many reads")


def get_change(rows: int) -> Work:
    """Reads a row, and changes it by what it read."""
    aid = random.randint(1, rows)

    def work(run: Transacts) -> None:
        run(_CHANGE, run(_READ, aid) + 1, aid)

    return work


def ten_statements(rows: int) -> Work:
    """The same with five rows, one after the other: four reads come after a write."""
    aids = sorted(random.sample(range(1, rows + 1), _PAIRS))

    def work(run: Transacts) -> None:
        for aid in aids:
            run(_CHANGE, run(_READ, aid) + 1, aid)

    return work


def compare(stack: Stack, plan: Plan, name: str, make: Callable[[int], Work], clients: int) -> Line:
    """Units per second of both sides, round by round."""
    line = Line(name, "1/s")
    for _ in range(plan.rounds):
        for side, opened in (("psycopg", _psycopg), ("PlainSQL", _service)):
            line.add(side, _rate(stack, plan, opened, make, clients))
    return line


def _rate(stack: Stack, plan: Plan, opened: Callable[[Stack], Any], make: Callable[[int], Work], clients: int) -> float:
    def run(runs: Runs) -> int:
        done = 0
        while time.perf_counter() < end_s:
            runs(make(plan.rows))
            done += 1
        return done

    with ThreadPoolExecutor(clients) as pool:
        sides = [opened(stack) for _ in range(clients)]
        each = [side.__enter__() for side in sides]
        for runs in each:
            # Opens the connections.
            runs(make(plan.rows))
        began_s = time.perf_counter()
        end_s = began_s + plan.seconds
        done = sum(pool.map(run, each))
        took_s = time.perf_counter() - began_s
        for side in sides:
            side.__exit__(None, None, None)
    return done / took_s


@contextmanager
def _service(stack: Stack) -> Iterator[Runs]:
    def runs(work: Work) -> None:
        client.run(lambda mine: work(lambda sql, *params: _first(mine.query(sql, *params))), max_attempts=100)

    with Client(resolve(stack.data_url, stack.api_key)) as client:
        yield runs


def _first(result: plainsql.Result) -> Any:
    return result.rows[0][0] if result.columns else None


@contextmanager
def _psycopg(stack: Stack) -> Iterator[Runs]:
    def execute(sql: str, *params: Any) -> Any:
        cursor = connection.execute(sql, params)
        return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]  # there is a row

    def runs(work: Work) -> None:
        while True:
            try:
                with connection.transaction():
                    return work(execute)
            except psycopg.errors.SerializationFailure:
                pass

    options = f"-c default_transaction_isolation=serializable {PLANNER}"
    with psycopg.connect(
        host=stack.socket, port=stack.port, user=stack.owner_role, dbname=stack.database, options=options,
        cursor_factory=psycopg.RawCursor, autocommit=True,
    ) as connection:  # fmt: skip
        yield runs
