"""Clients for drills: each write has an idempotency key and is repeated, at any node, until it is acknowledged."""

import asyncio
import itertools
import secrets
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from server.tests.fleet.writers import working
from server.tests.load import Client, NoAnswer

TABLE = "create table written (n text not null)"
_PAUSE_S = 0.05


@dataclass
class DrillLoad:
    """What clients know, and what they were answered instead of yes."""

    key: str
    # Where they ask. A drill may change it.
    ports: list[int]
    # What they trust, if they use TLS. A drill may change that, too.
    trust: ssl.SSLContext | None = None
    acknowledged: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    longest_gap_s: float = 0.0
    last_s: float = field(default_factory=time.monotonic)

    def took(self, number: str) -> None:
        now_s = time.monotonic()
        self.acknowledged.add(number)
        self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        self.last_s = now_s

    async def more(self, count: int = 20) -> None:
        """Waits for so many more acknowledged writes."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(120):
            while len(self.acknowledged) < wanted:  # noqa: ASYNC110  # other tasks work
                await asyncio.sleep(0.02)

    def check(self, rows: Sequence[str], may_lack: frozenset[str] = frozenset()) -> None:
        """Compares the acknowledged writes with what is there."""
        doubled = [number for number, count in Counter(rows).items() if count > 1]
        assert not doubled, f"doubled: {len(doubled)}"
        lost = self.acknowledged - set(rows) - may_lack
        assert not lost, f"lost: {len(lost)} of {len(self.acknowledged)}: {sorted(lost)[:5]}"

    def show(self, drill: str, note: str = "") -> None:
        """Prints a row of the table of drills."""
        failed = ", ".join(f"{count} × {what}" for what, count in sorted(self.failures.items())) or "none"
        print(
            f"\n| {drill} | {len(self.acknowledged)} | 0 | 0 | {sum(self.failures.values())} ({failed}) |"
            f" {self.longest_gap_s:.1f} s | {note}"
        )


@asynccontextmanager
async def drilled(
    key: str, ports: list[int], clients: int = 3, trust: ssl.SSLContext | None = None
) -> AsyncIterator[DrillLoad]:
    """Clients at work for the length of the block."""
    load, stop, numbers = DrillLoad(key, ports, trust), asyncio.Event(), itertools.count()
    tasks = [asyncio.create_task(_write(load, stop, numbers, first)) for first in range(clients)]
    async with working(tasks, stop):
        yield load


async def _write(load: DrillLoad, stop: asyncio.Event, numbers: "itertools.count[int]", first: int) -> None:
    while not stop.is_set():
        number, idempotency_key = f"w{next(numbers)}", secrets.token_hex(8)
        for attempt in itertools.count(first):
            ports = load.ports
            if await _is_done(load, ports[attempt % len(ports)], number, idempotency_key):
                load.took(number)
                break
            if stop.is_set():
                return
            await asyncio.sleep(_PAUSE_S)
        await asyncio.sleep(_PAUSE_S / 5)


async def _is_done(load: DrillLoad, port: int, number: str, idempotency_key: str) -> bool:
    body = {"sql": "insert into written values ($1)", "params": [number]}
    async with Client(port, load.key, trust=load.trust) as client:
        try:
            await client.post("/v1/query", body, idempotency_key=idempotency_key)
            answer = await client.answer()
        except (NoAnswer, OSError, TimeoutError) as error:
            load.failures[type(error).__name__] += 1
            return False
    if not answer.succeeded:
        load.failures[f"{answer.status} {answer.code}"] += 1
    return answer.succeeded
