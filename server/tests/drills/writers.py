"""Clients for drills: each write has an idempotency key and is repeated, at any node, until it is acknowledged.

`drilled` writes to data planes. Within it, `signing_in` asks a control plane for sessions and uses them.
"""

import asyncio
import itertools
import secrets
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from server.tests.fleet.writers import working
from server.tests.load import Answer, Client, NoAnswer

TABLE = "create table written (n text not null)"
_PAUSE_S = 0.05
# An organization may have only so many sessions.
_USES_OF_A_SESSION = 10


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
    # Requests that a control plane answered.
    controlled: int = 0
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

    async def more_controlled(self, count: int = 3) -> None:
        """Waits for so many more answers of the control plane."""
        wanted = self.controlled + count
        async with asyncio.timeout(120):
            while self.controlled < wanted:  # noqa: ASYNC110  # other tasks work
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
    key: str, ports: list[int], clients: int = 4, trust: ssl.SSLContext | None = None
) -> AsyncIterator[DrillLoad]:
    """Clients at work for the length of the block. Every other one keeps its connections."""
    load, stop, numbers = DrillLoad(key, ports, trust), asyncio.Event(), itertools.count()
    tasks = [asyncio.create_task(_Writer(load, first).write(stop, numbers)) for first in range(clients)]
    async with working(tasks, stop):
        yield load


class _Writer:
    """One client. It asks the nodes in turn, each over a connection of its own."""

    def __init__(self, load: DrillLoad, first: int) -> None:
        self._load = load
        self._attempts = itertools.count(first // 2)
        self._keeps = bool(first % 2)
        self._kept: dict[int, Client] = {}

    async def write(self, stop: asyncio.Event, numbers: "itertools.count[int]") -> None:
        """Writes until it is stopped, each number until it is acknowledged."""
        try:
            while not stop.is_set():
                await self._write_once(f"w{next(numbers)}", stop)
                await asyncio.sleep(_PAUSE_S / 5)
        finally:
            for client in self._kept.values():
                client.drop()

    async def _write_once(self, number: str, stop: asyncio.Event) -> None:
        idempotency_key = secrets.token_hex(8)
        while not await self._is_done(number, idempotency_key):
            if stop.is_set():
                return
            await asyncio.sleep(_PAUSE_S)
        self._load.took(number)

    async def _is_done(self, number: str, idempotency_key: str) -> bool:
        ports = self._load.ports
        client = self._client(ports[next(self._attempts) % len(ports)])
        body = {"sql": "insert into written values ($1)", "params": [number]}
        try:
            await client.post("/v1/query", body, idempotency_key=idempotency_key)
            answer = await client.answer()
        except (NoAnswer, OSError, TimeoutError) as error:
            self._load.failures[type(error).__name__] += 1
            client.drop()
            return False
        finally:
            if not self._keeps:
                client.drop()
        if not answer.succeeded:
            self._load.failures[f"{answer.status} {answer.code}"] += 1
        return answer.succeeded

    def _client(self, port: int) -> Client:
        if not self._keeps:
            return Client(port, self._load.key, trust=self._load.trust)
        client = self._kept.setdefault(port, Client(port, self._load.key))
        client.trust = self._load.trust
        return client


@asynccontextmanager
async def signing_in(load: DrillLoad, port: int) -> AsyncIterator[None]:
    """Two clients of the control plane for the length of the block. One of them keeps its connection."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_SessionClient(load, port, keeps=keeps).ask(stop)) for keeps in (False, True)]
    async with working(tasks, stop):
        yield


class _SessionClient:
    """Makes a session, extends it some times, reads with it from a data plane, and begins again."""

    def __init__(self, load: DrillLoad, port: int, *, keeps: bool) -> None:
        self._load = load
        self._port = port
        self._keeps = keeps

    async def ask(self, stop: asyncio.Event) -> None:
        token, uses = "", itertools.count()
        async with Client(self._port, self._load.key) as client:
            while not stop.is_set():
                use = next(uses)
                if use % _USES_OF_A_SESSION == 0 or not token:
                    token = await self._new_session(client)
                else:
                    await self._use(token, use)
                await asyncio.sleep(_PAUSE_S)

    async def _new_session(self, client: Client) -> str:
        client.trust = self._load.trust
        answer = await self._asked(client, "/v1/session", {})
        if not self._keeps:
            client.drop()
        return str(answer.body["session"]["token"]) if answer is not None else ""

    async def _use(self, token: str, use: int) -> None:
        """Every session is known to all planes at once."""
        port = self._load.ports[use % len(self._load.ports)]
        async with Client(self._port, token, trust=self._load.trust) as control:
            await self._asked(control, "/v1/session/refresh", {})
        async with Client(port, token, trust=self._load.trust) as data:
            await self._asked(data, "/v1/query", {"sql": "select 1"})

    async def _asked(self, client: Client, path: str, body: dict[str, Any]) -> Answer | None:
        try:
            await client.post(path, body)
            answer = await client.answer()
        except (NoAnswer, OSError, TimeoutError) as error:
            self._load.failures[f"{path}: {type(error).__name__}"] += 1
            client.drop()
            return None
        if answer.status not in (200, 201):
            self._load.failures[f"{path}: {answer.status} {answer.code}"] += 1
            return None
        self._load.controlled += 1
        return answer
