"""Ledgers: databases in which every transaction gets the next number, and the cell knows when each was committed.

A row of a ledger's table `counter` is locked from when a transaction takes its number until it ends. So the numbers are
in the order of the commits, without a gap, also of transactions over several databases, each of which has a number in
each of its databases.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from plainsql_server.core.principal import Scope
from server.tests import plain_http
from server.tests.customers import Customers
from server.tests.load import Node
from server.tests.operations.stage import Stage

# The cell keeps the time of each commit, which is what a restore at a moment goes by.
SETTINGS = {"track_commit_timestamp": "on"}
# Writers of a database pause, so that the machine is not what is tested.
_PAUSE_S = 0.02
_TABLES = """
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
        owner.execute(_TABLES.encode())


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


def _write(stage: Stage, database: str, ended: threading.Event) -> Iterator[Written]:
    number = 0
    with stage.owner(database) as owner:
        while not ended.wait(_PAUSE_S):
            name, sent_at = f"{database} {number}", datetime.now(UTC)
            with owner.transaction():
                for each in statements(name):
                    owner.execute(each.encode())
            yield Written((database,), name, sent_at, datetime.now(UTC))
            number += 1


def _write_spanning(node: Node, key: str, names: Sequence[str], ended: threading.Event) -> Iterator[Written]:
    chance, number = random.Random(1), 0
    while not ended.wait(_PAUSE_S):
        yield write_over_both(node, key, chance.sample(names, 2), f"spanning {number}")
        number += 1


@contextmanager
def writers(stage: Stage, node: Node, names: Sequence[str]) -> Iterator[list[Written]]:
    """One writer in each ledger, and one over two of them at a time, for the length of the block.

    Yields what they wrote, which is complete after the block.
    """
    ended, written, key = threading.Event(), list[Written](), new_key(stage)
    with ThreadPoolExecutor(len(names) + 1) as pool:
        running = [pool.submit(list[Written], _write(stage, name, ended)) for name in names]
        running.append(pool.submit(list[Written], _write_spanning(node, key, names, ended)))
        try:
            yield written
        finally:
            ended.set()
        for each in running:
            written += each.result()
