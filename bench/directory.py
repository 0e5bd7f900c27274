"""What a large directory costs: a million keys and a hundred thousand databases in the real tables.

Owns filling them, with rows that name no real database, and asking the service's own look-ups for keys and places in a
random order, none twice. Reports the times of lookups, what a node remembers of each, and what a node needs to start.
"""

import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.nodes import directory_dsn, running_node
from bench.processes import memory_mib
from bench.stack import Stack
from plainsql_server.core.credential import Secret, new_key
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.data_plane.databases import Databases
from plainsql_server.directory import cells
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.principals import Principals

_CELLS = 100
_PER_ORGANIZATION = 2
_CLIENTS = 16
_PLACEMENTS = 50

_FILL_BEFORE = (
    "SET statement_timeout = 0",
    """INSERT INTO cells (id, name, conninfo, admin_role, state)
       SELECT 'cell_bench' || g, 'bench-' || g, 'host=/nowhere', 'nobody', 'active'
       FROM generate_series(1, {cells}) g""",
    """INSERT INTO organizations (id, name, tier)
       SELECT 'org_bench' || g, 'Bench ' || g, 'dedicated' FROM generate_series(1, {organizations}) g""",
)
_FILL_AFTER = (
    """INSERT INTO roles (database_id, kind, engine_name)
       SELECT 'db_bench' || g, kind, left(kind, 1) || '_' || lpad(to_hex(g), 24, '0')
       FROM generate_series(1, {databases}) g, unnest(ARRAY['owner', 'reader']) kind""",
    """INSERT INTO api_keys (id, organization_id, name, digest, shown_prefix, last_four, scopes)
       SELECT 'key_bench' || g, 'org_bench' || g % {organizations} + 1, 'bench',
           sha256(('no secret ' || g)::bytea), 'svc_k_abcd', 'abcd', ARRAY['read', 'write']
       FROM generate_series(1, {keys}) g""",
)
# As many at once as there are cells, so that the row of each, which counts them, changes once in a transaction.
_DATABASES = """
    INSERT INTO databases (id, organization_id, name, state, is_default, engine_name, cell_id, record_secret)
    SELECT 'db_bench' || g, 'org_bench' || (g - 1) % {organizations} + 1, 'db-' || g, 'ready',
        g <= {organizations}, 'd_' || lpad(to_hex(g), 24, '0'), 'cell_bench' || g % {cells} + 1,
        md5(g::text) || md5((-g)::text)
    FROM generate_series({first}, {last}) g
"""
_REAL_KEY = """
    INSERT INTO api_keys (id, organization_id, name, digest, shown_prefix, last_four, scopes)
    VALUES (%s, %s, 'real', %s, %s, %s, ARRAY['read', 'write'])
"""


@dataclass(frozen=True)
class Times:
    """How long each of many look-ups took."""

    name: str
    took_s: Sequence[float]

    def at_ms(self, percent: float) -> float:
        ordered = sorted(self.took_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1000


@dataclass(frozen=True)
class Large:
    """What a large directory takes."""

    keys: int
    databases: int
    fill_s: float
    size_mib: float
    times: Sequence[Times]
    remembered: int
    remembered_bytes: float


def show(stack: Stack, keys: int, databases: int, asked: int) -> None:
    """Measures, and prints what was found."""
    with running_node(stack) as node:
        print(f"a node starts in {node.started_s:.2f} s, {memory_mib(node.pid):.0f} MiB, with an empty directory")
    found = asyncio.run(measure(directory_dsn(stack), keys, databases, asked))
    print(f"{found.keys} keys, {found.databases} databases: {found.size_mib:.0f} MiB, filled in {found.fill_s:.0f} s")
    for times in found.times:
        shown = "  ".join(f"p{percent} {times.at_ms(percent):.2f} ms" for percent in (50, 99, 99.9))
        print(f"{times.name} ({len(times.took_s)}): {shown}")
    print(f"a node remembers {found.remembered} answers in {found.remembered_bytes:.0f} bytes each")
    with running_node(stack) as node:
        print(f"a node starts in {node.started_s:.2f} s, {memory_mib(node.pid):.0f} MiB, with the full directory")


async def measure(dsn: str, keys: int, databases: int, asked: int) -> Large:
    """Fills the directory and asks it; `asked` look-ups of each kind, and as many keys whose secret is known."""
    async with Directory.open(dsn, max_connections=_CLIENTS) as directory:
        secrets = [new_key() for _ in range(asked)]
        began_s = time.monotonic()
        await _fill(directory, keys - asked, databases, secrets)
        fill_s = time.monotonic() - began_s
        times, remembered_bytes = await _ask(directory, databases, secrets)
        times.append(Times("placement of a new database", await _place(directory)))
        async with directory.connection() as connection:
            size = "SELECT pg_database_size(current_database()) / 1048576.0 AS mib"
            row = await (await connection.execute(size)).fetchone()
            assert row is not None
        return Large(keys, databases, fill_s, float(row["mib"]), times, 2 * asked, remembered_bytes)


async def _fill(directory: Directory, keys: int, databases: int, secrets: Sequence[Secret]) -> None:
    sizes = {
        "cells": _CELLS, "organizations": databases // _PER_ORGANIZATION, "databases": databases, "keys": keys,
    }  # fmt: skip
    async with directory.connection() as connection:
        for statement in _FILL_BEFORE:
            await connection.execute(statement.format(**sizes))
        for first in range(1, databases + 1, _CELLS):
            last = min(databases, first + _CELLS - 1)
            await connection.execute(_DATABASES.format(**sizes, first=first, last=last))
        for statement in _FILL_AFTER:
            await connection.execute(statement.format(**sizes))
        rows = [
            (f"key_real{number}", _organization(number, databases), each.digest, each.shown_prefix, each.last_four)
            for number, each in enumerate(secrets)
        ]
        await connection.cursor().executemany(_REAL_KEY, rows)
        await connection.execute("VACUUM ANALYZE")


def _organization(number: int, databases: int) -> str:
    return f"org_bench{number % (databases // _PER_ORGANIZATION) + 1}"


async def _ask(directory: Directory, databases: int, secrets: Sequence[Secret]) -> tuple[list[Times], float]:
    # Nothing is announced here, and nothing is asked for twice.
    freshness = Freshness(3_600_000, 3_600_000, 0)
    principals, places = Principals(directory, freshness), Databases(directory, freshness)
    number_of = {each.text: number for number, each in enumerate(secrets)}

    async def find_key(secret: str) -> object:
        return await principals.find(secret)

    async def find_place(secret: str) -> object:
        organization_id = _organization(number_of[secret], databases)
        name = f"db-{organization_id.removeprefix('org_bench')}"
        scopes = frozenset([Scope.READ, Scope.WRITE])
        return await places.find(Principal(organization_id, f"key_{secret[:12]}", "dedicated", scopes), name)

    wanted = [each.text for each in secrets]
    Random(7).shuffle(wanted)
    half = len(wanted) // 2
    gc.collect()
    before_bytes = _resident_bytes()
    times = []
    for name, find in (("a key", find_key), ("a database's place", find_place)):
        times.append(Times(f"{name}, one after the other", await _timed(find, wanted[:half], 1)))
        times.append(Times(f"{name}, {_CLIENTS} at once", await _timed(find, wanted[half:], _CLIENTS)))
    gc.collect()
    return times, (_resident_bytes() - before_bytes) / (2 * len(wanted))


async def _timed(find: Callable[[str], Awaitable[object]], wanted: Sequence[str], clients: int) -> list[float]:
    left = iter(wanted)
    took_s: list[float] = []

    async def ask() -> None:
        for each in left:
            began_s = time.perf_counter()
            assert await find(each) is not None
            took_s.append(time.perf_counter() - began_s)

    await asyncio.gather(*(ask() for _ in range(clients)))
    return took_s


async def _place(directory: Directory) -> list[float]:
    took_s = []
    for _ in range(_PLACEMENTS):
        began_s = time.perf_counter()
        assert await cells.roomiest(directory, "org_bench1", "dedicated") is not None
        took_s.append(time.perf_counter() - began_s)
    return took_s


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
