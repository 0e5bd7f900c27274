"""Transactions over several databases need several turns at once, and get no more than half of a process' turns."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server.tests.load import Answer, Client, running_node
from server.tests.processes import wait_for
from server.tests.service import Service

# Longer than anything here takes.
LONG_MS = 30_000


async def test_a_request_for_several_slots_waits_without_holding_any(service: Service) -> None:
    (name, first), (_, second) = new_organization(service), new_organization(service)
    with running_node(service.directory_dsn, cell_max_connections=4) as node:
        async with node.client(first) as slow, node.client(second) as other:
            async with held_up(service, slow, engine_name(service, name, "two")) as running:
                refused = await span(other, "select 1", timeout_ms=500)
                assert (refused.status, refused.code) == (503, "overloaded")
                assert "span databases" in refused.body["error"]["message"]
                # One turn is there.
                assert (await other.query("select 1", database="one")).succeeded
                waiting = asyncio.create_task(span(other, "select 1", timeout_ms=LONG_MS))
            assert (await waiting).succeeded
            assert (await running).succeeded


@asynccontextmanager
async def held_up(service: Service, client: Client, second: str) -> AsyncIterator["asyncio.Task[Answer]"]:
    """A transaction over both databases that has its turns, and waits for a lock in the second one during the block."""
    table = f"gate_{secrets.token_hex(4)}"
    for database in ("one", "two"):
        assert (await client.query(f"create table {table} ()", database=database)).succeeded
    with service.engine(second) as holder, holder.transaction():
        holder.execute(f"lock table {table}".encode())
        running = asyncio.create_task(span(client, f"select from {table}", timeout_ms=LONG_MS))
        await asyncio.to_thread(wait_for, lambda: awaits_lock(service, table), 20, lambda: "it does not run")
        yield running


def new_organization(service: Service) -> tuple[str, str]:
    """The name and a key of an organization with two databases."""
    name = f"turns-{secrets.token_hex(4)}"
    service.customers.add_organization(name, "standard")
    for database in ("one", "two"):
        service.customers.add_database(database, name)
    return name, service.new_key("write", org=name)


async def span(client: Client, sql: str, *, timeout_ms: int) -> Answer:
    statements = [{"database": name, "sql": sql} for name in ("one", "two")]
    await client.post("/v1/transaction", {"statements": statements, "timeout_ms": timeout_ms})
    return await client.answer()


def engine_name(service: Service, organization: str, database: str) -> str:
    """What the engine calls a database."""
    statement = (
        "select d.engine_name from databases d join organizations o on o.id = d.organization_id"
        " where o.name = %s and d.name = %s"
    )
    with service.engine("plainsql_directory") as directory:
        row = directory.execute(statement, (organization, database)).fetchone()
    assert row is not None
    return str(row[0])


def awaits_lock(service: Service, table: str) -> bool:
    with service.engine() as engine:
        asked = engine.execute(
            "select from pg_stat_activity where query like %s and wait_event_type = 'Lock'", (f"%{table}",)
        )
        return asked.fetchone() is not None
