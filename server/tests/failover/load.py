"""Clients that work while a cell is taken apart: list-append and counters, and each answer with its time.

Owns the load and the verdict: an order explains everything that clients saw, no acknowledged write is lost, everybody
was answered within the time that it had given.
"""

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from server.tests.consistency import history
from server.tests.consistency.faults import wait_until
from server.tests.consistency.history import Outcome
from server.tests.consistency.transports import HttpTransport, Reply, Statement
from server.tests.consistency.workload import ARRAYS, Workload
from server.tests.load import Node, percentile

# What clients allow, each its own: the first cannot wait for a fail-over, the last can.
TIMEOUTS_S = (2.0, 6.0, 25.0)
# What a request may take beyond that: to notice, to ask the engine to stop, and to insist.
GRACE_S = 1.5
APPENDING = 6
COUNTING = 3
_PAUSE_S = 0.05
# What clients wait between two transactions. A fail-over takes tens of seconds: at full speed they would take the
# processors from the servers that fail over, and from the tests beside this one. `make soak` does not wait.
_THINK_S = 0.0 if os.environ.get("PLAINSQL_TEST_FULL") else 0.03
# Refused or rolled back for others' sake, or at the deadline, with nothing done or nobody knowing.
_EXPECTED = frozenset(["statement_timeout", "transaction_deadline_exceeded"])


@dataclass(frozen=True)
class Answered:
    """One answer, and when it came."""

    sent_s: float
    answered_s: float
    timeout_s: float
    reply: Reply

    @property
    def late_s(self) -> float:
        return self.answered_s - self.sent_s - self.timeout_s


class TimedTransport(HttpTransport):
    """A client that gives each request a time, and records its answers."""

    def __init__(self, node: Node, key: str, timeout_s: float) -> None:
        super().__init__(node.client(key))
        self._timeout_s = timeout_s
        self.answered: list[Answered] = []

    async def _post(self, path: str, fields: dict[str, Any]) -> Reply:
        sent_s = time.monotonic()
        reply = await super()._post(path, {**fields, "timeout_ms": int(self._timeout_s * 1000)})
        if reply.code in _EXPECTED:
            reply = Reply(reply.outcome, reply.code)
        self.answered.append(Answered(sent_s, time.monotonic(), self._timeout_s, reply))
        return reply


@dataclass
class CountingClient:
    """Increments a counter of its own, and one that all share."""

    transport: TimedTransport
    number: int
    acknowledged: int = 0
    unknown: int = 0

    async def run(self, enough: Callable[[], bool]) -> None:
        both = [Statement("update counters set n = n + 1 where id = $1", (number,)) for number in (self.number, 0)]
        while not enough():
            reply = await self.transport.run(both)
            self.acknowledged += reply.outcome is Outcome.OK
            self.unknown += reply.outcome is Outcome.INFO
            await asyncio.sleep(_THINK_S if reply.outcome is Outcome.OK else _PAUSE_S)
        await self.transport.close()


@dataclass
class Load:
    """Everybody who works, on one node of the service."""

    node: Node
    key: str
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    # For how long this process once stood still, and so probably the machine with it.
    stalled_s: float = 0.0
    # Seconds from a fault to the first acknowledged write that was sent after it.
    back_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transports = [self._transport(number) for number in range(APPENDING + COUNTING)]
        self.workload = Workload(ARRAYS, self.transports[:APPENDING], think_s=_THINK_S)
        self.counting = [
            CountingClient(transport, number + 1) for number, transport in enumerate(self.transports[APPENDING:])
        ]

    def _transport(self, number: int) -> TimedTransport:
        return TimedTransport(self.node, self.key, TIMEOUTS_S[number % len(TIMEOUTS_S)])

    async def run(self, happen: Callable[["Load"], Awaitable[None]], limit_s: float) -> None:
        """Has everybody work until what happens has happened."""
        await self._make_tables()
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            group.create_task(self._watch_stalls())
            group.create_task(self.workload.run(self.stopped.is_set, limit_s))
            for client in self.counting:
                group.create_task(client.run(self.stopped.is_set))
            try:
                await self.go_on()
                await happen(self)
                await self.go_on()
            finally:
                self.stopped.set()

    async def _watch_stalls(self) -> None:
        while not self.stopped.is_set():
            began_s = time.monotonic()
            await asyncio.sleep(_PAUSE_S)
            self.stalled_s = max(self.stalled_s, time.monotonic() - began_s - _PAUSE_S)

    async def go_on(self, times: int = 50) -> None:
        """Waits until so many transactions more are committed, and every counter is incremented by its client."""
        committed = self.workload.committed + times
        counted = [client.acknowledged for client in self.counting]
        await wait_until(
            lambda: (
                self.workload.committed >= committed
                and all(client.acknowledged > before for client, before in zip(self.counting, counted, strict=True))
            )
        )

    async def back_after(self, since_s: float) -> None:
        """Waits until a write is acknowledged that was sent after a moment, and notes how long that took."""
        await wait_until(lambda: self._first_after(since_s) is not None)
        self.back_s.append((self._first_after(since_s) or 0.0) - since_s)

    def longest_gap_s(self) -> float:
        """The longest time in which no write was acknowledged."""
        answered_at_s = sorted(
            answered.answered_s
            for client in self.counting
            for answered in client.transport.answered
            if answered.reply.outcome is Outcome.OK
        )
        return max(later - before for before, later in pairwise(answered_at_s))

    async def require_clean(self, name: str) -> None:
        """The verdict, after a few lines of report."""
        answered = [each for transport in self.transports for each in transport.answered]
        late = [each for each in answered if each.late_s > GRACE_S + self.stalled_s]
        slowest_s = max(each.late_s for each in answered)
        report = self.workload.check_history(name)
        counters = await self._counters()
        self._print(answered, slowest_s, counters)
        assert late == [], late
        assert self.workload.complaints == []
        assert [each for each in answered if each.reply.complaint] == []
        for client in self.counting:
            assert client.acknowledged <= counters[client.number] <= client.acknowledged + client.unknown
        assert counters[0] == sum(counters[client.number] for client in self.counting)
        if report.anomalies:
            kept = Path(tempfile.mkdtemp(prefix="plainsql-history-")) / "history.jsonl"
            history.save(self.workload.history, kept)
            raise AssertionError(f"{report.describe()}\nThe history is in {kept}.")

    def _print(self, answered: Sequence[Answered], slowest_s: float, counters: dict[int, int]) -> None:
        acknowledged = sum(client.acknowledged for client in self.counting)
        unknown = sum(client.unknown for client in self.counting)
        codes = Counter(each.reply.code or "ok" for each in answered)
        print(
            f"  counters: {acknowledged} increments acknowledged, {unknown} unknown, {counters[0]} there;"
            f" answers {dict(codes)}; the latest {slowest_s:+.2f} s after its deadline;"
            f" this process once stood still for {self.stalled_s:.2f} s"
        )
        print(f"  the longest time without an acknowledged write: {self.longest_gap_s():.1f} s")
        if self.back_s:
            times = ", ".join(f"{value:.1f}" for value in self.back_s)
            print(
                f"  writes back after {times} s; median {percentile(self.back_s, 50):.1f}, max {max(self.back_s):.1f}"
            )

    def _first_after(self, since_s: float) -> float | None:
        answered = [
            answered.answered_s
            for client in self.counting
            for answered in client.transport.answered
            if answered.sent_s > since_s and answered.reply.outcome is Outcome.OK
        ]
        return min(answered, default=None)

    async def _make_tables(self) -> None:
        rows = ", ".join(f"({number}, 0)" for number in range(COUNTING + 1))
        async with self.node.client(self.key) as client:
            for statement in (
                "drop table if exists lists, counters",
                *ARRAYS.create,
                "create table counters (id int primary key, n int not null)",
                f"insert into counters values {rows}",
            ):
                answer = await client.query(statement, timeout_ms=20_000)
                assert answer.succeeded, answer

    async def _counters(self) -> dict[int, int]:
        async with self.node.client(self.key) as client:
            answer = await client.query("select id, n from counters", timeout_ms=20_000)
        assert answer.succeeded, answer
        return {row["id"]: row["n"] for row in answer.body["rows"]}
