"""Interactive transactions of the Python client as the transactions of the consistency tests.

Owns the programs: each reads lists or registers, computes in Python what to write, and writes it. What it wrote is
wrong if what it read has changed, so that only verification keeps the history free of anomalies.

A register holds one number. A program reads it before it writes it, so the number that each write replaced is known,
and `as_lists` makes a list of what a register held one after the other. The checker of lists then judges registers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from plainsql import AsyncClient, AsyncTransaction, Error, NetworkError
from plainsql.interactive.conflicts import is_conflict
from plainsql.result import TransactionResult
from plainsql.transport.protocol import Core, Options
from plainsql.transport.wire import Steps
from server.tests.consistency.history import Append, History, Operation, Outcome, Read
from server.tests.consistency.transports import Reply, Statement, Transport
from server.tests.consistency.workload import ARRAYS, ROWS, Lists, Table, Workload

# Of the units, this share is run by `run`, which repeats them. The others are blocks, which fail at the first conflict.
_RUN_SHARE = 0.5
# What a service says that is being killed, besides connections that end.
_UNAVAILABLE = (429, 503)

REGISTERS = Table(
    "registers",
    ("create table registers (k int primary key, v int not null)",),
    "insert into registers values ($1::int, $2::int) on conflict (k) do update set v = excluded.v",
    "select v from registers where k = $1::int",
    lambda rows: tuple(row[0] for row in rows),
)


@dataclass(frozen=True)
class UnitProgram:
    """A table, and what a program writes to it that has read these values of a key and appends another one."""

    table: Table
    write: Callable[[int, tuple[int, ...], int], Statement]


def _write_array(key: int, values: tuple[int, ...], value: int) -> Statement:
    if values:
        return Statement("update lists set v = $2::int[] where k = $1::int", (key, [*values, value]))
    return Statement("insert into lists values ($1::int, $2::int[])", (key, [value]))


PROGRAMS = {
    # The whole list is written back: an append in between would be lost.
    "arrays": UnitProgram(ARRAYS, _write_array),
    # The program counts the rows to find the next place: an append in between would take the same one.
    "rows": UnitProgram(
        ROWS,
        lambda key, values, value: Statement(
            "insert into items values ($1::int, $2::int, $3::int)", (key, len(values) + 1, value)
        ),
    ),
    # The number is replaced: one that was written in between would never have been seen.
    "registers": UnitProgram(REGISTERS, lambda key, _, value: Statement(REGISTERS.append, (key, value))),
}


class UnitAttempt:
    """One run of a program in a transaction, and what it has done so far."""

    def __init__(self, program: UnitProgram, transaction: AsyncTransaction) -> None:
        self.operations: list[Operation] = []
        # Whether nothing is left to do but the commit.
        self.is_complete = False
        self._program = program
        self._transaction = transaction
        self._known: dict[int, tuple[int, ...]] = {}

    async def run(self, plan: Sequence[Operation]) -> None:
        for operation in plan:
            if isinstance(operation, Read):
                await self._read(operation.key)
            else:
                await self._append(operation)
        self.is_complete = True

    async def _read(self, key: int) -> None:
        result = await self._transaction.query(self._program.table.read, key)
        self._known[key] = self._program.table.values_of(result.rows)
        self.operations.append(Read(key, self._known[key]))

    async def _append(self, append: Append) -> None:
        """Writes what follows from what the program read, however long ago in this transaction."""
        if append.key not in self._known:
            await self._read(append.key)
        values = self._known[append.key]
        statement = self._program.write(append.key, values, append.value)
        # It may be carried out even if this raises an error.
        self.operations.append(append)
        await self._transaction.query(statement.sql, *statement.params)
        del self._known[append.key]


class UnitTransport:
    """A client. `run` sends statements as one batch: that is how reads that belong together are made."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def run(self, statements: Sequence[Statement]) -> Reply:
        try:
            async with self.client.transaction() as batch:
                pending = [batch.add(each.sql, *each.params) for each in statements]
        except Error as error:
            return reply_to(error, is_complete=True)
        return Reply(Outcome.OK, rows=tuple([list(row) for row in each.result.rows] for each in pending))

    async def close(self) -> None:
        self.client.close()


def reply_to(error: Error, *, is_complete: bool) -> Reply:
    """What a client's error says about a transaction. Before the commit, nothing can have been carried out."""
    outcome = error.outcome if is_complete else "rolled_back"
    code = getattr(error, "code", type(error).__name__)
    is_lost = isinstance(error, NetworkError) or getattr(error, "status", None) in _UNAVAILABLE
    return Reply(
        Outcome.FAIL if outcome in ("rolled_back", "not_executed") else Outcome.INFO,
        code,
        complaint="" if is_lost or is_conflict(error) else f"{type(error).__name__} {error}",
        is_committed=outcome == "committed",
    )


@dataclass
class UnitWorkload(Workload):
    """A run in which each transaction that writes is a program with code between its statements."""

    program: UnitProgram = PROGRAMS["arrays"]
    conflicts: int = 0

    async def _carry_out(
        self, transport: Transport, plan: tuple[Operation, ...]
    ) -> tuple[Reply, tuple[Operation, ...]]:
        if not writes(plan):
            # Reads of an interactive transaction that does not write are not verified, and need not belong together.
            return await super()._carry_out(transport, plan)
        assert isinstance(transport, UnitTransport)
        attempts: list[UnitAttempt] = []

        async def work(transaction: AsyncTransaction) -> None:
            attempts.append(UnitAttempt(self.program, transaction))
            await attempts[-1].run(plan)

        try:
            await self._commit(transport.client, work)
        except Error as error:
            self.conflicts += len(attempts) - 1 + is_conflict(error)
            reply = reply_to(error, is_complete=attempts[-1].is_complete)
        else:
            self.conflicts += len(attempts) - 1
            reply = Reply(Outcome.OK, attempts=len(attempts))
        return reply, tuple(attempts[-1].operations)

    async def _commit(self, client: AsyncClient, work: Callable[[AsyncTransaction], Awaitable[None]]) -> None:
        if self.lists.has_luck(_RUN_SHARE):
            await client.run(work)
            return
        async with client.transaction() as transaction:
            await work(transaction)

    def _as_lists(self) -> History:
        return as_lists(self.history) if self.table is REGISTERS else self.history


class UnitLists(Lists):
    """Plans that write."""

    def plan(self) -> tuple[Operation, ...]:
        plan = super().plan()
        return plan if writes(plan) else self.plan()


def writes(plan: Sequence[Operation]) -> bool:
    return any(isinstance(each, Append) for each in plan)


class UnverifiedCore(Core):
    """Asks the service to verify nothing in commits, or in rehearsals: the control of these tests."""

    def __init__(self, replaced: Core, *, commits: bool, rehearsals: bool) -> None:
        super().__init__(replaced.settings, replaced.timeout_s)
        self._verifies_commits = commits
        self._verifies_rehearsals = rehearsals

    def transaction(
        self,
        statements: Sequence[Mapping[str, Any]],
        options: Options,
        max_retries: int | None,
        nows: Sequence[str] = (),
    ) -> Steps[TransactionResult]:
        sent = statements if self._verifies_commits else _unverified(statements)
        return super().transaction(sent, options, max_retries, nows)

    def rehearsal(
        self,
        statements: Sequence[Mapping[str, Any]],
        options: Options,
        max_retries: int | None,
        nows: Sequence[str],
    ) -> Steps[dict[str, Any]]:
        sent = statements if self._verifies_rehearsals else _unverified(statements)
        return super().rehearsal(sent, options, max_retries, nows)


def _unverified(statements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "expect"} for each in statements]


def as_lists(history: History) -> History:
    """The history of registers as one of lists: each number is preceded by all that it replaced, one by one."""
    replaced: dict[tuple[int, int], int] = {}
    for transaction in history:
        held: dict[int, int] = {}
        for operation in transaction.operations:
            if isinstance(operation, Append):
                if operation.key in held:
                    replaced[operation.key, operation.value] = held[operation.key]
                held[operation.key] = operation.value
            elif operation.values:
                held[operation.key] = operation.values[0]
    return [
        msgspec.structs.replace(each, operations=tuple(_as_list(operation, replaced) for operation in each.operations))
        for each in history
    ]


def _as_list(operation: Operation, replaced: Mapping[tuple[int, int], int]) -> Operation:
    if isinstance(operation, Append) or not operation.values:
        return operation
    values = [operation.values[0]]
    while (earlier := replaced.get((operation.key, values[-1]))) is not None and earlier not in values:
        values.append(earlier)
    return Read(operation.key, tuple(reversed(values)))
