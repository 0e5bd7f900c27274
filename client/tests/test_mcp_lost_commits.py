"""Commits of agents whose answer is lost after they took effect, between the planes and before the agent's program."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx2
import mcp_types as types
import pytest
from mcp.client import Client, ClientRequestContext

from client.tests.agents import agent, fields_of, text_of
from client.tests.losing_relay import LosingRelay
from plainsql.command.mcp_bridge import bridge_to, note_error
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.http.control.mcp.data_plane import DataPlane
from plainsql_server.http.control.mcp.route import DataPlaneAddress, McpCaller, McpOptions
from plainsql_server.http.control.mcp.tools import ToolStatement, TransactionArguments
from plainsql_server.http.control.mcp.writing import Dialog, Writing
from server.tests.service import Service

_INSERT = {"statements": [{"sql": "insert into notes values (1)"}]}


@pytest.fixture
def database(service: Service) -> str:
    name = f"lost{uuid4().hex[:8]}"
    service.customers.add_database(name)
    service.query("create table notes (id int)", database=name)
    return name


def rows(service: Service, database: str) -> int:
    return int(service.value("select count(*) from notes", database=database))


async def agree(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"commit": True})


@pytest.mark.parametrize(("losses", "outcome"), [(1, "committed"), (2, "unknown")])
async def test_between_the_planes_the_key_says_whether_it_took_effect(
    service: Service, database: str, losses: int, outcome: str
) -> None:
    key = service.new_key("write")
    caller = McpCaller(Principal("org", "key", "free", frozenset([Scope.WRITE])), key, "req_lost", McpOptions())
    arguments = TransactionArguments(statements=[ToolStatement(sql="insert into notes values (1)")])
    async with LosingRelay(service.data_url, service.dev["ca_file"]) as relay:
        data_plane = DataPlane(DataPlaneAddress(relay.url, None))
        writing, dialog = Writing(data_plane, caller), Dialog(asks_user=False, state=None, answer=None)
        rehearsed = await writing.run(arguments, database, dialog)
        assert isinstance(rehearsed, types.CallToolResult)
        fields = fields_of(rehearsed)
        arguments.confirmation_token = fields["confirmation_token"]
        relay.losses = losses
        result = await writing.run(arguments, database, dialog)
        again = await writing.run(arguments, database, dialog)
        await data_plane.close()
    assert isinstance(result, types.CallToolResult)
    assert isinstance(again, types.CallToolResult)
    assert isinstance(result.structured_content, dict)
    assert result.structured_content["outcome"] == outcome
    assert result.structured_content["idempotency_key"] == fields["idempotency_key"]
    assert f"idempotency_key: {fields['idempotency_key']}" in text_of(result)
    assert "had been committed before" in fields_of(again)["summary"]
    assert rows(service, database) == 1


@asynccontextmanager
async def bridged(service: Service, database: str, relay: LosingRelay, *, mode: str) -> AsyncIterator[Client]:
    """An agent with a user, whose program reaches the service through the relay."""
    headers = {"Authorization": f"Bearer {service.new_key('write')}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, event_hooks={"response": [note_error]}) as http:
        server = await bridge_to(http, f"{relay.url}/mcp?allow_writes=true&database={database}")
        async with Client(server, mode=mode, elicitation_callback=agree) as session:
            yield session


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_command_sends_a_commit_again_whose_answer_was_lost(
    service: Service, database: str, mode: str
) -> None:
    async with (
        LosingRelay(service.control_url, service.dev["ca_file"]) as relay,
        bridged(service, database, relay, mode=mode) as session,
    ):
        relay.loses_if = b'"inputResponses"'
        relay.losses = 1
        result = await session.call_tool("run_transaction", _INSERT)
        assert "had been committed before" in fields_of(result)["summary"]
        assert rows(service, database) == 1


async def test_a_commit_lost_twice_is_named_by_its_key(service: Service, database: str) -> None:
    async with (
        LosingRelay(service.control_url, service.dev["ca_file"]) as relay,
        bridged(service, database, relay, mode="legacy") as session,
    ):
        relay.loses_if = b'"inputResponses"'
        relay.losses = 2
        lost = await session.call_tool("run_transaction", _INSERT)
        assert lost.is_error
        key = text_of(lost).partition("request_outcome with the key ")[2].partition(",")[0]
        found: dict[str, Any] = fields_of(await session.call_tool("request_outcome", {"key": key}))
    assert found["outcome"] == "committed"
    assert rows(service, database) == 1


async def test_a_rehearsal_says_the_key_of_its_commit(service: Service, database: str) -> None:
    async with agent(service, "http", database=database, allow_writes=True) as session:
        rehearsed = fields_of(await session.call_tool("run_transaction", _INSERT))
        asked = {"key": rehearsed["idempotency_key"]}
        assert fields_of(await session.call_tool("request_outcome", asked))["outcome"] == "not_executed"
