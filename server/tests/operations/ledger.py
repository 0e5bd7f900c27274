"""Clients that write over HTTPS while machines are lost, and know when each write was acknowledged.

    async with writing(service) as ledger:
        await ledger.more()
    ledger.check(...)

Each write is a transaction of two statements, in one database or in two. It has an idempotency key and is repeated
until it is acknowledged. Another client renames the organization, which is a write to the directory.
"""

import asyncio
import itertools
import secrets
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from server.tests.fleet.writers import working
from server.tests.load import Client, NoAnswer

# The two halves of a write, by its kind: the database and the table.
HALVES = {"pair": (("main", "a"), ("main", "b")), "span": (("main", "c"), ("other", "c"))}
TABLES = ("a", "b", "c")
_PAUSE_S = 0.05
_TIMEOUT_MS = 10_000
_LIMIT_S = 120


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
