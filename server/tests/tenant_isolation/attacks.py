"""What one tenant can do to a cell through the public API, each for as long as it is let.

Owns the attacks, and how each is seen to be under way: a bomb that does not go off proves nothing. Whatever an attack
is answered is right: it only must not be felt by others.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from server.tests.events import StreamClient
from server.tests.load import Client, NoAnswer, Node

ENDLESS = "select a.n, repeat('x', 1000) as text from generate_series(1, 100000) a(n), generate_series(1, 10000) b(n)"
TABLES = "do $$ begin for i in {first}..{last} loop execute format('create table if not exists bulk_%s (id int primary key, t text)', i); end loop; end $$"  # fmt: skip # noqa: E501
# Tables with 25 rows to a page. A transaction that reads at most 19 of a table's pages takes a predicate lock for each;
# of more pages, with the settings of a cell, PostgreSQL makes one lock on the table.
SPARSE_TABLES = 300
SPARSE = f"""do $$ begin
    for i in 1..{SPARSE_TABLES} loop
        execute format('create table sparse_%s (id int primary key) with (fillfactor = 10)', i);
        execute format('insert into sparse_%s select generate_series(1, 500)', i);
        execute format('analyze sparse_%s', i);
    end loop;
end $$"""
_GIVE_UP_S = 0.05
_HASHED: dict[str, Any] = {"digest": True, "rows": False}


class Attacker:
    """The attacking tenant: a key, a process to attack, and how long."""

    def __init__(self, node: Node, key: str, seconds: float, tables: int) -> None:
        self.node = node
        self.key = key
        self.tables = tables
        self.until_s = time.monotonic() + seconds
        self.answers = 0
        self.refusals = 0

    @property
    def succeeded(self) -> int:
        return self.answers - self.refusals

    async def repeat(self, *statements: str) -> None:
        """Sends this again and again."""
        async with self.node.client(self.key) as client:
            while time.monotonic() < self.until_s:
                await self.send(client, *statements)

    async def send(self, client: Client, *statements: str) -> None:
        """One query, or one transaction; whatever comes of it, but nothing after the attack's end."""
        if len(statements) == 1:
            await self.post(client, "/v1/query", {"sql": statements[0]})
        else:
            await self.post(client, "/v1/transaction", {"statements": list(statements)})

    async def rehearse(self, *statements: dict[str, Any]) -> None:
        """Rehearses this again and again, with as many times of earlier rehearsals as there may be."""
        day = "2026-11-17T{:02}:{:02}:{:02}.123456Z"
        nows = [day.format(each // 180, each // 3 % 60, each % 3) for each in range(4_000)]
        async with self.node.client(self.key) as client:
            while time.monotonic() < self.until_s:
                fields = {"statements": list(statements), "dry_run": True, "nows": nows}
                await self.post(client, "/v1/transaction", fields)

    async def post(self, client: Client, path: str, fields: dict[str, Any]) -> None:
        """One request."""
        try:
            async with asyncio.timeout(max(0.1, self.until_s - time.monotonic())):
                await client.post(path, fields)
                answer = await client.answer()
        except (NoAnswer, TimeoutError, ConnectionError):
            client.drop()
            return
        self.answers += 1
        if not answer.succeeded:
            self.refusals += 1
            # Refusals are cheap to give; being refused must not be what keeps the test's own client busy.
            await asyncio.sleep(_GIVE_UP_S)


Attack = Callable[[Attacker], Coroutine[None, None, None]]


async def _at_once(*work: Awaitable[None]) -> None:
    await asyncio.gather(*work)


async def idle_serializable(attacker: Attacker) -> None:
    """Long serializable transactions that have read everything, beside writers whose conflicts they keep alive."""
    idle = ("select count(*) from mine", "select pg_sleep(20)", "update mine set v = v + 1 where id = 1")
    busy = ("select count(*) from mine", "update mine set v = v + 1 where id = (random() * 400)::int")
    await _at_once(*(attacker.repeat(*idle) for _ in range(4)), *(attacker.repeat(*busy) for _ in range(4)))


async def lock_bomb(attacker: Attacker) -> None:
    """Two locks for each table, in as many transactions as there can be: more than the cell has places for."""
    grab = f"do $$ begin for i in 1..{attacker.tables} loop execute format('select from bulk_%s where id = 1', i); end loop; perform pg_sleep(2); end $$"  # noqa: E501
    await _at_once(*(attacker.repeat(grab) for _ in range(16)))


async def predicate_lock_bomb(attacker: Attacker) -> None:
    """Serializable reads of many single rows, which PostgreSQL remembers for all tenants in one place."""
    read = f"do $$ begin for i in 1..{SPARSE_TABLES} loop execute format('select from sparse_%s where id = any (array(select g * 25 + {{rest}} from generate_series(1, 18) g))', i); end loop; perform pg_sleep(2); end $$"  # noqa: E501
    reads = (read.replace("{rest}", str(number)) for number in range(16))
    await _at_once(*(attacker.repeat("set local enable_seqscan = off", each) for each in reads))


async def subtransaction_flood(attacker: Attacker) -> None:
    """Transactions with thousands of others within, which everybody's snapshots must look past."""
    nest = "do $$ begin for i in 1..10000 loop begin insert into mine values (-i - {base}); exception when sqlstate '00001' then null; end; end loop; perform pg_sleep(0.2); raise 'enough'; end $$"  # noqa: E501
    await _at_once(*(attacker.repeat(nest.replace("{base}", f"{number * 10000}")) for number in range(8)))


async def cpu_bomb(attacker: Attacker) -> None:
    """Statements that do nothing but count."""
    count = "select count(*) from generate_series(1, 100000000) a"
    await _at_once(*(attacker.repeat(count) for _ in range(16)))


async def short_lives(attacker: Attacker) -> None:
    """Statements that count until they are cut short, which is soon."""
    count = "select count(*) from generate_series(1, 1000000000) a"

    async def cut_short() -> None:
        async with attacker.node.client(attacker.key) as client:
            while time.monotonic() < attacker.until_s:
                if (await client.query(count, timeout_ms=50)).code == "overloaded":
                    await asyncio.sleep(_GIVE_UP_S)
                else:
                    attacker.answers += 1

    await _at_once(*(cut_short() for _ in range(4)))


async def lost_connections(attacker: Attacker) -> None:
    """Statements that count for a moment and then end their own connection, so that each needs a new one."""
    end = "select pg_terminate_backend(pg_backend_pid()) from (select count(*) as n from generate_series(1, 300000)) as c where n > 0"  # noqa: E501
    await _at_once(*(attacker.repeat(end) for _ in range(8)))


async def temp_file_bomb(attacker: Attacker) -> None:
    """Sorts that do not fit into memory."""
    sort = (
        "select max(t) from (select repeat(md5(g::text), 30) as t from generate_series(1, 2000000) g order by 1) as x"
    )
    await _at_once(*(attacker.repeat(sort) for _ in range(4)))


async def catalog_bloat(attacker: Attacker) -> None:
    """More and more tables, as fast as they can be made."""

    async def make(start: int) -> None:
        async with attacker.node.client(attacker.key) as client:
            for first in range(attacker.tables + start, attacker.tables + 10_000, 100):
                if time.monotonic() > attacker.until_s:
                    return
                await attacker.send(client, TABLES.format(first=first, last=first + 24))

    await _at_once(*(make(start) for start in (1, 26, 51, 76)))


async def connection_flood(attacker: Attacker) -> None:
    """Connections that are opened, used once and thrown away, with a key and without."""

    async def flood(number: int) -> None:
        while time.monotonic() < attacker.until_s:
            async with attacker.node.client(attacker.key if number % 2 else "svc_k_nonsense") as client:
                await attacker.send(client, "select 1")

    await _at_once(*(flood(number) for number in range(40)))


async def notify_flood(attacker: Attacker) -> None:
    """Notifications from within a block, where NOTIFY cannot be refused by its first word."""
    flood = (
        "do $$ begin for i in 1..5000 loop execute format('notify flood, %L', i || repeat('x', 500)); end loop; end $$"
    )
    await _at_once(
        *(attacker.repeat(flood) for _ in range(4)),
        attacker.repeat("do $$ begin listen flood; perform pg_sleep(5); end $$"),
    )


async def stalled_streams(attacker: Attacker) -> None:
    """Streams that nobody reads, and requests that never end."""
    async with AsyncExitStack() as stack:
        for _ in range(30):
            client = await stack.enter_async_context(StreamClient(attacker.node.port, attacker.key, receive_bytes=1024))
            await client.send(ENDLESS)
        for _ in range(60):
            sender = stack.enter_context(socket.create_connection(("127.0.0.1", attacker.node.port)))
            sender.sendall(b"POST /v1/query HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n{" + b" " * 20_000)
        await asyncio.sleep(max(0.0, attacker.until_s - time.monotonic()))


async def long_values(attacker: Attacker) -> None:
    """Results that take the service itself long to parse, to encode and to send."""
    digits = "select repeat('1', 40000000)"
    escapes = """select repeat(E'a"\\n', 8000000)"""
    rows = "select g, md5(g::text) as a, md5(g::text) as b from generate_series(1, 100000) g"
    await _at_once(*(attacker.repeat(sql) for sql in (digits, digits, escapes, rows)))


async def rehearsals(attacker: Attacker) -> None:
    """Dry runs with what costs the service itself the most: many verified reads, large digests, frozen inserts."""
    async with attacker.node.client(attacker.key) as client:
        read: dict[str, Any] = {"sql": "select * from mine where id = 1", "digest": True}
        await client.post("/v1/transaction", {"statements": [read], "dry_run": True})
        (result,) = (await client.answer()).body["results"]
    verified = {"sql": read["sql"], "expect": {"multiset_digest": result["multiset_digest"]}, "rows": False}
    times = "select repeat(substr(now()::text, 1, 19) || ' ', 250) from generate_series(1, 600)"
    long = "select now() || repeat('1', 40000000)"
    insert = {"sql": "insert into mine (id, v) values ((random() * 1e9)::int + 1000, 1) returning id"}
    freeze = {**insert, "freeze": True, "digest": True}
    await _at_once(
        *(attacker.rehearse(*[verified] * 2_000) for _ in range(4)),
        *(attacker.rehearse({"sql": sql, **_HASHED}) for sql in (times, times, long, long)),
        *(attacker.rehearse(*[freeze] * 500) for _ in range(4)),
        *(attacker.rehearse({"sql": "update mine set v = v + 1 returning *", **_HASHED}) for _ in range(4)),
    )


@dataclass(frozen=True)
class Bomb:
    """An attack, and what shows that it goes off."""

    attack: Attack
    unit: str
    seen: str | None
    """What the superuser is asked for in the attacker's database meanwhile; None: what the attacker was answered."""
    least: int
    in_full: int
    is_costly_to_see: bool = False
    """Whether looking disturbs others, so that it ends as soon as enough was seen."""


_RUNNING = "select count(*) from pg_stat_activity where usename ~ '^o_' and datname = current_database() and {}"
_LOCKS = "select count(*) from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database()"
_LOST = "select sessions_killed from pg_stat_database where datname = current_database()"

ATTACKS: dict[str, Bomb] = {
    "idle serializable": Bomb(
        idle_serializable, "sleeping transactions", _RUNNING.format("query ~ 'pg_sleep' and state = 'active'"), 2, 4
    ),
    # To count locks is to hold all partitions of the lock table meanwhile.
    "lock bomb": Bomb(lock_bomb, "locks", _LOCKS, 2_000, 10_000, is_costly_to_see=True),
    "predicate locks": Bomb(predicate_lock_bomb, "predicate locks", f"{_LOCKS} and mode = 'SIReadLock'", 2_000, 30_000),
    "CPU bomb": Bomb(cpu_bomb, "running statements", _RUNNING.format("query ~ '100000000' and state = 'active'"), 2, 4),
    "short lives": Bomb(short_lives, "cancelled statements", None, 10, 200),
    "lost connections": Bomb(lost_connections, "lost", _LOST, 1, 50),
    "temporary files": Bomb(
        temp_file_bomb, "MB at once", "select sum(size)::int8 / 1000000 from pg_ls_tmpdir()", 5, 200
    ),
    "catalog bloat": Bomb(
        catalog_bloat, "tables", "select count(*) from pg_class where relname ~ '^bulk_[0-9]+$'", 325, 10_000
    ),
    "subtransactions": Bomb(
        subtransaction_flood, "thousand transaction IDs", "select (txid_current() - {before}) / 1000", 10, 200
    ),
    "connection flood": Bomb(connection_flood, "requests", None, 50, 1_000),
    "NOTIFY flood": Bomb(notify_flood, "requests, 5,000 each", None, 3, 30),
    "long values": Bomb(long_values, "long results", None, 1, 10),
    "rehearsals": Bomb(rehearsals, "rehearsals", None, 3, 10),
    "stalled streams": Bomb(stalled_streams, "stalled streams", _RUNNING.format("query ~ '^fetch'"), 1, 2),
}


@asynccontextmanager
async def under(attack: Attack, attacker: Attacker) -> AsyncIterator[None]:
    """Attacks for the length of the block."""
    running = asyncio.create_task(attack(attacker))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
