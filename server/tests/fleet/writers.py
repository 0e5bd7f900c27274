"""Clients that write without a pause while something happens to the service, and know what they may expect afterwards.

Each write is a row of its own. What was acknowledged must be there once; what was refused, saying so, must not be
there; what ended without a word, or with the word that nobody knows, may be there once.
"""

import asyncio
import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import psycopg

from server.tests import plain_http
from server.tests.load import Answer, Client, NoAnswer

TABLE = "create table written (n text not null, at timestamptz default clock_timestamp())"
_PAUSE_S = 0.05


@dataclass
class Written:
    """What clients know."""

    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    # What was said instead of yes, and how often.
    words: Counter[str] = field(default_factory=Counter)
    # How long an acknowledged write took, and how long there was none.
    longest_answer_s: float = 0.0
    longest_gap_s: float = 0.0
    last_s: float = field(default_factory=time.monotonic)

    def took(self, number: str, began_s: float) -> None:
        now_s = time.monotonic()
        self.acknowledged.add(number)
        self.longest_answer_s = max(self.longest_answer_s, now_s - began_s)
        self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        self.last_s = now_s

    def heard(self, number: str, answer: Answer, began_s: float) -> None:
        if answer.succeeded:
            self.took(number, began_s)
            return
        self.words[f"{answer.status} {answer.code} {answer.outcome}"] += 1
        assert answer.is_refusal(), answer
        (self.unknown if answer.outcome == "unknown" else self.refused).add(number)

    def check(self, rows: list[str]) -> None:
        """Compares what clients know with what is there."""
        counted = Counter(rows)
        doubled = {number for number, count in counted.items() if count > 1}
        assert not doubled, f"doubled: {len(doubled)}"
        lost = self.acknowledged - counted.keys()
        assert not lost, f"lost: {len(lost)} of {len(self.acknowledged)}: {sorted(lost)[:5]}"
        ghosts = self.refused & counted.keys()
        assert not ghosts, f"refused and done: {len(ghosts)}"
        assert counted.keys() <= self.acknowledged | self.unknown


@asynccontextmanager
async def writing(port: int, key: str, clients: int = 4, keyed: int = 2) -> AsyncIterator[Written]:
    """Clients at work for the length of the block: some that never ask twice, and some that ask until they know."""
    written = Written()
    stop = asyncio.Event()
    numbers = itertools.count()
    tasks = [asyncio.create_task(_write(port, key, written, stop, numbers)) for _ in range(clients)]
    tasks += [asyncio.create_task(_write_surely(port, key, written, stop, numbers)) for _ in range(keyed)]
    async with working(tasks, stop):
        yield written


@asynccontextmanager
async def working(tasks: Sequence["asyncio.Task[None]"], stop: asyncio.Event) -> AsyncIterator[None]:
    """Tasks run for the length of the block, then until they see `stop`. Raises the error of one that failed."""
    try:
        yield
    finally:
        stop.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each


async def _write(port: int, key: str, written: Written, stop: asyncio.Event, numbers: "itertools.count[int]") -> None:
    """Asks once for each row."""
    async with Client(port, key) as client:
        while not stop.is_set():
            number, began_s = f"w{next(numbers)}", time.monotonic()
            try:
                answer = await client.query("insert into written values ($1)", number)
                written.heard(number, answer, began_s)
                if not answer.succeeded:
                    await asyncio.sleep(_PAUSE_S)
            except ConnectionRefusedError:
                written.refused.add(number)
                await asyncio.sleep(_PAUSE_S)
            except NoAnswer:
                written.words["no answer"] += 1
                written.unknown.add(number)


async def _write_surely(
    port: int, key: str, written: Written, stop: asyncio.Event, numbers: "itertools.count[int]"
) -> None:
    """Asks for each row with an idempotency key, until it is done."""
    async with plain_http.async_client(base_url=f"http://127.0.0.1:{port}") as client:
        while not stop.is_set():
            number, began_s = f"k{next(numbers)}", time.monotonic()
            headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": secrets.token_hex(8)}
            body = {"sql": "insert into written values ($1)", "params": [number]}
            while True:
                try:
                    answer = await client.post("/v1/query", headers=headers, json=body)
                    if answer.status_code == 200 and json.loads(answer.content)["success"]:
                        written.took(number, began_s)
                        break
                    written.words[f"{answer.status_code} {answer.json()['error']['code']} with a key"] += 1
                except httpx.TransportError:
                    written.words["no answer with a key"] += 1
                if stop.is_set():
                    written.unknown.add(number)
                    return
                await asyncio.sleep(_PAUSE_S)


def rows_of(connection: psycopg.Connection) -> list[str]:
    return [number for (number,) in connection.execute("select n from written")]
