"""Transactions over several databases need several turns at once, and get no more than half of a process' turns."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server.tests.load import Answer, Client, directory_dsn, running_node
from server.tests.processes import wait_for
from server.tests.service import Service

# Longer than anything here takes.
LONG_MS = 30_000


async def test_who_needs_several_turns_waits_without_having_one_and_others_go_on(service: Service) -> None:
    first, second = new_organization(service), new_organization(service)
    with running_node(directory_dsn(service), cell_max_connections=4) as node:
        async with node.client(first) as slow, node.client(second) as other:
            async with held_up(service, slow) as running:
                refused = await span(other, "select 1", timeout_ms=500)
                assert (refused.status, refused.code) == (503, "overloaded")
                assert "several databases" in refused.body["error"]["message"]
                # One turn is there.
                assert (await other.query("select 1", database="one")).succeeded
                waiting = asyncio.create_task(span(other, "select 1", timeout_ms=LONG_MS))
            assert (await waiting).succeeded
            assert (await running).succeeded


@asynccontextmanager
async def held_up(service: Service, client: Client) -> AsyncIterator["asyncio.Task[Answer]"]:
    """A transaction that spans both databases, and has its turns and waits for a lock for the length of the block."""
    table = f"gate_{secrets.token_hex(4)}"
    for database in ("one", "two"):
        assert (await client.query(f"create table {table} ()", database=database)).succeeded
    with service.engine(database_of(service, table)) as holder, holder.transaction():
        holder.execute(f"lock table {table}".encode())
        running = asyncio.create_task(span(client, f"select from {table}", timeout_ms=LONG_MS))
        await asyncio.to_thread(wait_for, lambda: awaits_lock(service, table), 20, lambda: "it does not run")
        yield running


def new_organization(service: Service) -> str:
    """The key of an organization with two databases."""
    name = f"turns-{secrets.token_hex(4)}"
    service.operate("org", "create", name, "--tier", "standard")
    for database in ("one", "two"):
        service.operate("database", "create", "--org", name, database)
    return service.new_key("write", org=name)


async def span(client: Client, sql: str, *, timeout_ms: int) -> Answer:
    statements = [{"database": name, "sql": sql} for name in ("one", "two")]
    await client.post("/v1/transaction", {"statements": statements, "timeout_ms": timeout_ms})
    return await client.answer()


def database_of(service: Service, table: str) -> str:
    """What the engine calls a database that has this table."""
    with service.engine() as engine:
        names = [name for (name,) in engine.execute("select datname from pg_database where datname ~ '^d_'")]
    for name in names:
        with service.engine(name) as database:
            if database.execute("select to_regclass(%s)", (f"public.{table}",)).fetchone() != (None,):
                return str(name)
    raise AssertionError(f"no database has {table}")


def awaits_lock(service: Service, table: str) -> bool:
    with service.engine() as engine:
        asked = engine.execute(
            "select from pg_stat_activity where query like %s and wait_event_type = 'Lock'", (f"%{table}",)
        )
        return asked.fetchone() is not None
