"""Transactions over several databases need several turns at once, and get no more than half of a process' turns."""

import asyncio
import secrets

from server.tests.load import Answer, Client, directory_dsn, running_node
from server.tests.processes import wait_for
from server.tests.service import Service


async def test_who_needs_several_turns_waits_without_having_one_and_others_go_on(service: Service) -> None:
    first, second = new_organization(service), new_organization(service)
    mark = secrets.token_hex(8)
    with running_node(directory_dsn(service), cell_max_connections=4) as node:
        async with node.client(first) as slow, node.client(second) as other:
            running = asyncio.create_task(span(slow, f"select pg_sleep(4), '{mark}'", timeout_ms=20_000))
            await asyncio.to_thread(wait_for, lambda: is_running(service, mark), 20, lambda: "it does not run")
            refused = await span(other, "select 1", timeout_ms=500)
            assert (refused.status, refused.code) == (503, "overloaded")
            assert "several databases" in refused.body["error"]["message"]
            # One turn is there.
            assert (await other.query("select 1", database="one")).succeeded
            assert (await span(other, "select 1", timeout_ms=20_000)).succeeded
            assert (await running).succeeded


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


def is_running(service: Service, mark: str) -> bool:
    with service.engine() as engine:
        asked = engine.execute("select from pg_stat_activity where query like %s and state = 'active'", (f"%'{mark}'",))
        return asked.fetchone() is not None
