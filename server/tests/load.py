"""Load for tests: data-plane processes of the test's own, and clients that speak HTTP straight over a socket.

Owns starting and stopping such a process, one client's connection, and what the engine says is running. A
client's connection can be dropped at any moment, and a request without an answer is distinguished from one that
was never taken: that is what these tests are about, and what HTTP libraries hide.
"""

import asyncio
import json
import math
import os
import secrets
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
import pytest

from plainsql_server.dev.ports import free_port
from plainsql_server.directory.rights.grants import Role
from server.tests import forks, logs
from server.tests.postgres import as_role
from server.tests.processes import kill_with_children
from server.tests.sealing import key_settings
from server.tests.secrets_in_logs import refuse_secrets
from server.tests.service import Service

_START_LIMIT_S = 120
_STOP_LIMIT_S = 60
# No answer may take longer than this, or the test would hang instead of failing.
ANSWER_LIMIT_S = 60.0
IS_FULL = bool(os.environ.get("PLAINSQL_TEST_FULL"))
# In the gate, other tests, a slow machine or its host may delay any answer. A bar with it is missed by what never
# ends, and by nothing else; `make soak` runs each test alone and allows for no stall.
STALL_S = 0.0 if IS_FULL else 5.0
# How often the gate repeats a measurement whose bar is close: a stall delays some rounds, a defect all of them.
ROUNDS = 1 if IS_FULL else 5
# Instead of a module: a node that is no fork of the tests, whose workers import the program.
NEW_PROCESS = "plainsql_server"
# What a line of the log has that tells of a finished request.
_FINISHED = '"event":"request"'
_DSN_FILE = "PLAINSQL_DIRECTORY_DSN_FILE"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def in_full(*values: object) -> Any:
    """Values of a parametrized test for `make soak` alone. A neighbour of theirs stands for them in the gate."""
    return pytest.param(*values, marks=pytest.mark.full)


def size(variable: str, default: int) -> int:
    """How large a test is: a number from the environment, small by default."""
    return int(os.environ.get(variable, default))


class NoAnswer(Exception):
    """The connection ended before the answer was complete."""


@dataclass(frozen=True)
class Answer:
    """A complete answer to a query."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]
    elapsed_s: float

    @property
    def succeeded(self) -> bool:
        return self.status == 200 and bool(self.body["success"])

    @property
    def code(self) -> str:
        return "" if self.body["success"] else str(self.body["error"]["code"])

    @property
    def outcome(self) -> str:
        return "committed" if self.body["success"] else str(self.body["error"]["outcome"])

    @property
    def value(self) -> Any:
        """The first value of the first row."""
        return next(iter(self.body["rows"][0].values()))

    def is_refusal(self) -> bool:
        """Whether the service said 'not now', as it should: with the time to wait."""
        return self.status in (429, 503) and int(self.headers.get("retry-after", 0)) > 0


class Client:
    """One connection, opened when needed and again when the server closed it. One request at a time."""

    def __init__(self, port: int, key: str, *, database: str = "", trust: ssl.SSLContext | None = None) -> None:
        """`database` is sent as the header X-Database. With `trust`, connections use TLS; the next one, if changed."""
        self.port = port
        self.trust = trust
        chosen = f"x-database: {database}\r\n" if database else ""
        self._common = f"host: test\r\nauthorization: Bearer {key}\r\n{chosen}content-type: application/json\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._sent_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop()

    async def query(self, sql: str, *params: Any, request_id: str = "", **fields: Any) -> Answer:
        """The answer. Raises ConnectionRefusedError if nobody listens, NoAnswer, or TimeoutError for a hang."""
        await self.send(sql, *params, request_id=request_id, **fields)
        return await self.answer()

    async def send(self, sql: str, *params: Any, request_id: str = "", **fields: Any) -> None:
        """Sends a query, whose answer is read with `answer` or given up with `drop`."""
        await self.post("/v1/query", {"sql": sql, "params": list(params), **fields}, request_id=request_id)

    async def post(
        self, path: str, fields: dict[str, Any], *,
        request_id: str = "", idempotency_key: str = "", method: str = "POST",
    ) -> None:  # fmt: skip
        """Sends a request, as `send` does."""
        if self._writer is None or self._reader is None or self._reader.at_eof() or self._writer.is_closing():
            self.drop()
            host = "localhost" if self.trust else None
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.trust, server_hostname=host
            )
        body = json.dumps(fields).encode()
        key = f"idempotency-key: {idempotency_key}\r\n" if idempotency_key else ""
        head = (
            f"{method} {path} HTTP/1.1\r\n{self._common}{key}x-request-id: {request_id or new_request_id()}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._sent_s = time.monotonic()
        self._writer.write(head.encode() + body)

    async def answer(self) -> Answer:
        """The answer to what was sent."""
        assert self._reader is not None
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await self._read(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.drop()
            raise NoAnswer(repr(error)) from error

    def drop(self) -> None:
        """Closes the socket at once, whatever is under way."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _read(self, reader: asyncio.StreamReader) -> Answer:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers["content-length"]))
        elapsed_s = time.monotonic() - self._sent_s
        if headers.get("connection") == "close":
            self.drop()
        return Answer(int(head[0].split(" ")[1]), headers, json.loads(body), elapsed_s)


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


@dataclass
class Node:
    """A process of a plane with settings of its own."""

    directory_dsn: str
    port: int
    log: Path
    settings: dict[str, str]
    # What Python runs, if not the service itself; or NEW_PROCESS.
    module: str | None = None
    plane: str = "data"
    process: forks.Process = field(init=False)

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        role = Role[self.plane.upper()]
        environment = {
            **os.environ, **key_settings(self.directory_dsn), **self.settings,
            "PLAINSQL_DIRECTORY_DSN": "" if _DSN_FILE in self.settings else as_role(self.directory_dsn, role),
            f"PLAINSQL_{self.plane.upper()}_PORT": str(self.port),
        }  # fmt: skip
        with self.log.open("ab") as log:
            if self.module == NEW_PROCESS:
                command = [sys.executable, "-m", self.module, self.plane]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            else:
                folder = self.log.parent
                self.process = forks.start([self.plane], environment, log, folder, module=self.module or forks.SERVER)
        end_s = time.monotonic() + _START_LIMIT_S
        while not self.is_ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end_s, self.log.read_text()
            time.sleep(0.02)

    def health(self) -> httpx.Response:
        has_tls = "PLAINSQL_TLS_CERT_FILE" in self.settings
        # Whether its certificate is valid is for clients to see.
        return httpx.get(f"http{'s' if has_tls else ''}://127.0.0.1:{self.port}/health", timeout=5, verify=False)

    def is_ready(self) -> bool:
        try:
            return self.health().status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        """Asks it to stop and waits until it has."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_LIMIT_S)

    def client(self, key: str) -> Client:
        return Client(self.port, key)

    def resident_bytes(self) -> int:
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(statm.split()[1]) * _PAGE_BYTES

    def failures(self) -> str:
        """What its log says beyond finished requests."""
        lines = self.log.read_text().splitlines()
        return "\n".join(line for line in lines if _FINISHED not in line)

    def logged(self) -> set[str]:
        """The ids of the requests that it finished in some way, by its own log."""
        lines = [line for line in self.log.read_text().splitlines() if _FINISHED in line]
        return {str(json.loads(line)["request_id"]) for line in lines}


@contextmanager
def running_node(
    directory_dsn: str, module: str | None = None, plane: str = "data", /, **settings: object
) -> Iterator[Node]:
    """A process of a plane for the length of the block; `workers=2` is PLAINSQL_WORKERS."""
    variables = {name if name.isupper() else f"PLAINSQL_{name.upper()}": str(each) for name, each in settings.items()}
    with tempfile.TemporaryDirectory(prefix="plainsql-node-") as folder:
        node = Node(directory_dsn, free_port(), Path(folder) / "log", variables, module, plane)
        try:
            with logs.watching(node.log.parent, "log"):
                node.start()
                yield node
        finally:
            if node.process.poll() is None:
                # Workers outlive a parent that is killed alone.
                kill_with_children(node.process.pid)
                node.process.wait(_STOP_LIMIT_S)
            refuse_secrets(node.log)


class Activity:
    """What the engine is running, asked past the service."""

    def __init__(self, connection: "psycopg.AsyncConnection[tuple[Any, ...]]") -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def of(cls, service: Service) -> AsyncIterator["Activity"]:
        dsn = service.directory_dsn
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield cls(connection)

    async def pids(self, tag: str, condition: str = "true") -> set[int]:
        """The backends that run a statement with this tag in its first words."""
        cursor = await self._connection.execute(
            f"SELECT pid FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid()"
            f" AND query LIKE '%%' || %s || '%%' AND {condition}",
            (tag,),
        )
        return {row[0] for row in await cursor.fetchall()}

    async def begun(self, tag: str, condition: str = "true") -> int:
        """Waits until a statement with this tag runs; the pid of its backend."""
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while not (pids := await self.pids(tag, condition)):  # noqa: ASYNC110  # another process is watched
                await asyncio.sleep(0.002)
        (pid,) = pids
        return pid

    async def gone(self, tag: str, since_s: float) -> float:
        """Waits until no statement with this tag runs; the seconds since a moment of the monotonic clock."""
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while await self.pids(tag):  # noqa: ASYNC110  # another process is watched
                await asyncio.sleep(0.005)
        return time.monotonic() - since_s


async def any_round(succeeds: Callable[[], Awaitable[bool]]) -> bool:
    """Whether one of the rounds succeeds; the others are not needed then."""
    for _ in range(ROUNDS):
        if await succeeds():
            return True
    return False


def new_tag() -> str:
    return f"tag-{secrets.token_hex(8)}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


async def all_of(count: int, work: Callable[[int], Awaitable[None]], parallel: int = 5) -> None:
    """Does the work `count` times, so many at once. The first failure ends it."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(parallel):
            group.create_task(worker())
