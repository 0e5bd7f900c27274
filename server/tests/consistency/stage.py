"""Transactions that are sent whole, and yet run step by step as a schedule says.

Owns the gates: rows that the stage holds locked. Between any two steps of a transaction there is a statement that
waits for its gate, so that the transaction goes on when the stage opens it. Nothing depends on time: a transaction
has made its step when PostgreSQL says that it waits for its next gate, or for another transaction, or when it ended.
"""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from server.tests.consistency.history import Outcome
from server.tests.consistency.transports import HttpTransport, Reply, Statement, Transport

_LIMIT_S = 60
# Stands in a step for a sub-select that waits for the next gate, after the statement took its snapshot.
PAUSE = "{barrier}"

Rows = list[list[Any]]


@dataclass(frozen=True)
class Played:
    """What a transaction came to: whether it took effect, and the rows of each of its steps if it did."""

    reply: Reply
    steps: tuple[Rows, ...]

    @property
    def committed(self) -> bool:
        return self.reply.outcome is Outcome.OK


class Gates:
    """Rows that are locked until they are opened, each by a connection of its own."""

    def __init__(self, dsn: str, count: int) -> None:
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._admin.execute("create table if not exists gates (id int primary key)")
        self._admin.execute("insert into gates select generate_series(1, %s) - 1 on conflict do nothing", (count,))
        self._admin.execute("grant all on gates to public")
        self._holders = [psycopg.connect(dsn) for _ in range(count)]

    @classmethod
    @contextmanager
    def closed(cls, dsn: str, count: int) -> Iterator["Gates"]:
        barriers = cls(dsn, count)
        try:
            for number, holder in enumerate(barriers._holders):
                holder.execute("select from gates where id = %s for update", (number,))
            yield barriers
        finally:
            for connection in (barriers._admin, *barriers._holders):
                connection.close()

    def open(self, number: int) -> None:
        self._holders[number].rollback()

    def open_all(self) -> None:
        for number in range(len(self._holders)):
            self.open(number)

    def is_waiting(self, tag: str) -> bool:
        """Whether a statement with this tag waits for a gate or for another transaction."""
        waiting = self._admin.execute(
            "select from pg_stat_activity where query like %s and pid <> pg_backend_pid()"
            " and state = 'active' and cardinality(pg_blocking_pids(pid)) > 0",
            (f"/* {tag} */%",),
        )
        return waiting.fetchone() is not None


class Role:
    """One transaction: its statements, the gates among them, and how far it has come."""

    def __init__(self, steps: Sequence[str], first_barrier: int) -> None:
        self.tag = f"role-{secrets.token_hex(6)}"
        self.barriers: list[int] = []
        self._first_barrier = first_barrier
        self._statements: list[Statement] = []
        self._places: list[int] = []
        for number, step in enumerate(steps):
            if PAUSE in step:
                step = step.replace(PAUSE, f"({self._wait()}) as barrier")
            elif number > 0:
                self._add(self._wait())
            self._places.append(len(self._statements))
            self._add(step)
        self._task: asyncio.Task[Reply] | None = None

    def _wait(self) -> str:
        self.barriers.append(self._first_barrier + len(self.barriers))
        return f"select id from gates where id = {self.barriers[-1]} for share"

    def _add(self, sql: str) -> None:
        self._statements.append(Statement(f"/* {self.tag} */ {sql}"))

    async def advance(self, transport: Transport, barriers: Gates) -> None:
        """Makes the next step, or as much of it as others allow."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(transport))
        else:
            barriers.open(self.barriers.pop(0))
        async with asyncio.timeout(_LIMIT_S):
            while not self._task.done() and not barriers.is_waiting(self.tag):  # noqa: ASYNC110  # the engine is watched
                await asyncio.sleep(0.005)

    async def finish(self) -> Played:
        assert self._task is not None
        async with asyncio.timeout(_LIMIT_S):
            reply = await self._task
        steps = tuple(reply.rows[place] for place in self._places) if reply.outcome is Outcome.OK else ()
        return Played(reply, steps)

    async def _run(self, transport: Transport) -> Reply:
        if isinstance(transport, HttpTransport) and len(self._statements) == 1:
            return await transport.run_alone(self._statements[0])
        return await transport.run(self._statements)


async def play(
    dsn: str, transports: Sequence[Transport], scripts: Sequence[Sequence[str]], schedule: str
) -> list[Played]:
    """Runs transactions in the order of a schedule, as `1221`: a step of the first, two of the second, and so on."""
    roles: list[Role] = []
    for steps in scripts:
        roles.append(Role(steps, sum(len(role.barriers) for role in roles)))
    with Gates.closed(dsn, sum(len(role.barriers) for role in roles)) as barriers:
        for number in map(int, schedule):
            await roles[number - 1].advance(transports[number - 1], barriers)
        barriers.open_all()
        played = [await role.finish() for role in roles]
    for transport in transports:
        await transport.close()
    return played
