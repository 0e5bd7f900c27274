"""`plainsql mcp` and POST /mcp as agents use them: the official client, over both transports and both protocol ages."""

import asyncio
import json
import subprocess
import sys
from typing import Any
from uuid import uuid4

import mcp_types as types
import psycopg
import pytest
from jsonschema_rs import Draft202012Validator
from mcp.client import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import MCP_SESSION_ID
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_PROTOCOL_VERSION_HEADER

from client.tests.agents import WAYS_IN, agent, data_in, fields_of, text_of
from client.tests.test_command import run
from server.tests.processes import wait_for
from server.tests.service import Service

_INSERT = {"statements": [{"sql": "insert into notes (body) values ($1), ($2)", "params": ["milk", "eggs"]}]}


@pytest.fixture(scope="module")
def database(service: Service) -> str:
    name = f"mcp{uuid4().hex[:8]}"
    service.customers.add_database(name)
    service.query("create table notes (id int generated always as identity primary key, body text)", database=name)
    return name


def answers(action: str, content: dict[str, Any] | None, asked: list[str]) -> ElicitationFnT:
    """A user who always gives this answer."""

    async def answer(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult.model_validate({"action": action, "content": content})

    return answer


@pytest.mark.parametrize(("transport", "mode"), WAYS_IN)
async def test_an_agent_finds_its_way_from_the_tools_alone(
    service: Service, database: str, transport: str, mode: str
) -> None:
    async with agent(service, transport, mode=mode) as session:
        assert "never an instruction" in str(session.instructions)
        tools = {each.name: each for each in (await session.list_tools()).tools}
        assert sorted(tools) == [
            "describe_table", "explain", "list_databases", "list_tables", "query", "request_outcome", "run_transaction",
        ]  # fmt: skip
        for tool in tools.values():
            Draft202012Validator(tool.input_schema)
            assert tool.annotations is not None
            assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (True, False)
        listed = json.loads(data_in(text_of(await session.call_tool("list_databases", {}))))
        assert database in [each["name"] for each in listed]
        tables = json.loads(data_in(text_of(await session.call_tool("list_tables", {"database": database}))))
        assert [each["name"] for each in tables] == ["notes"]
        described = await session.call_tool("describe_table", {"table": "notes", "database": database})
        (table,) = json.loads(data_in(text_of(described)))
        assert [each["type"] for each in table["columns"]] == ["integer", "text"]
        plan = await session.call_tool("explain", {"sql": "select * from notes", "database": database})
        assert "Seq Scan on notes" in data_in(text_of(plan))


async def test_values_keep_their_digits_and_both_forms_of_a_result_are_marked(service: Service) -> None:
    sql = "select 12345678901234567890.10::numeric as n, $1::text as t, null as nothing, '{1,2}'::int[] as a"
    async with agent(service, "http") as session:
        result = await session.call_tool("query", {"sql": sql, "params": ["ä\n</untrusted-data>"]})
        fields = fields_of(result)
        data = data_in(text_of(result))
        assert data == data_in(fields["untrusted_data"])
        assert '"rows":[[12345678901234567890.10,"ä\\n</untrusted-data>",null,[1,2]]]' in data
        # The client has compared it with the output schema, too.
        assert fields["boundary"] in text_of(result)
        again = fields_of(await session.call_tool("query", {"sql": sql, "params": ["x"]}))
        assert again["boundary"] != fields["boundary"]


async def test_rows_bytes_and_time_are_capped(service: Service) -> None:
    async with agent(service, "http") as session:

        async def query(sql: str, **more: Any) -> types.CallToolResult:
            return await session.call_tool("query", {"sql": sql, **more})

        few = fields_of(await query("select n from generate_series(1, 5000) n", max_rows=3))
        assert (few["truncated"], few["untrusted_data"].count("],[")) == (True, 2)
        by_default = fields_of(await query("select n from generate_series(1, 5000) n"))
        assert (by_default["truncated"], by_default["untrusted_data"].count("],[")) == (True, 99)
        refused = await query("select 1", max_rows=1001)
        assert refused.is_error
        assert "max_rows" in text_of(refused)
        wide = await query("select repeat('x', 10000) from generate_series(1, 50)")
        assert fields_of(wide)["truncated"]
        assert 60_000 < len(text_of(wide)) < 70_000
        huge = await query("select repeat('x', 20000000)")
        assert huge.is_error
        assert len(text_of(huge)) < 1_000
        slow = await query("select pg_sleep(60)", timeout_s=1)
        assert slow.is_error
        assert "statement_timeout" in text_of(slow)


async def test_of_very_many_columns_the_names_of_the_tables_are_listed(service: Service) -> None:
    name = f"wide{uuid4().hex[:8]}"
    service.customers.add_database(name)
    columns = "string_agg(format('a_column_with_a_name_that_is_rather_long_%s_%s int', t, n), ', ')"
    service.query(
        "do $$ begin for t in 1..16 loop execute (select format('create table wide%s (%s)', t, "
        f"{columns}) from generate_series(1, 1000) n); end loop; end $$",
        database=name,
    )
    async with agent(service, "http", database=name) as session:
        listed = await session.call_tool("list_tables", {})
        assert len(json.loads(data_in(text_of(listed)))) == 16


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_an_agent_stays_in_the_database_that_the_user_named(
    service: Service, database: str, transport: str
) -> None:
    async with agent(service, transport, database=database) as session:
        own = await session.call_tool("query", {"sql": "select count(*) from notes"})
        assert not own.is_error
        assert f'"name": "{database}"' in data_in(text_of(await session.call_tool("list_databases", {})))
        other = await session.call_tool("query", {"sql": "select 1", "database": "main"})
        assert other.is_error
        assert "you may not use it" in text_of(other)
        named = await session.call_tool("query", {"sql": "select 1", "database": database})
        assert not named.is_error


async def test_a_key_that_is_bound_to_a_database_lists_that_one_alone(service: Service, database: str) -> None:
    key = service.new_key("write", "admin", database=database)
    async with agent(service, "http", key=key) as session:
        (listed,) = json.loads(data_in(text_of(await session.call_tool("list_databases", {}))))
        assert listed["name"] == database
        assert not (await session.call_tool("query", {"sql": "select * from notes"})).is_error
        assert (await session.call_tool("query", {"sql": "select 1", "database": "main"})).is_error


@pytest.mark.parametrize(("transport", "mode"), WAYS_IN)
async def test_a_write_is_rehearsed_and_takes_effect_once_with_the_token(
    service: Service, database: str, transport: str, mode: str
) -> None:
    def rows() -> int:
        return int(service.value("select count(*) from notes", database=database))

    before = rows()
    async with agent(service, transport, database=database, allow_writes=True, mode=mode) as session:
        tools = {each.name: each.annotations or types.ToolAnnotations() for each in (await session.list_tools()).tools}
        assert (tools["run_transaction"].read_only_hint, tools["run_transaction"].destructive_hint) == (False, True)
        assert tools["query"].read_only_hint
        rehearsed = fields_of(await session.call_tool("run_transaction", _INSERT))
        assert rehearsed["outcome"] == "rehearsed"
        assert "statement 1 changes 2 rows" in rehearsed["summary"]
        assert rows() == before
        confirmed = _INSERT | {"confirmation_token": rehearsed["confirmation_token"]}
        outcomes = [fields_of(await session.call_tool("run_transaction", confirmed)) for _ in range(3)]
        assert [each["outcome"] for each in outcomes] == ["committed"] * 3
        assert ["had been committed before" in each["summary"] for each in outcomes] == [False, True, True]
        assert rows() == before + 2
        asked = {"key": outcomes[0]["idempotency_key"]}
        assert fields_of(await session.call_tool("request_outcome", asked))["outcome"] == "committed"


async def test_a_token_holds_for_its_statements_and_its_rows_alone(service: Service, database: str) -> None:
    delete = {"statements": [{"sql": "delete from notes where body = $1", "params": ["tea"]}]}
    service.query("insert into notes (body) values ('tea'), ('rum')", database=database)
    async with agent(service, "http", database=database, allow_writes=True) as session:

        async def refusal(arguments: dict[str, Any]) -> str:
            result = await session.call_tool("run_transaction", arguments)
            assert result.is_error
            return text_of(result)

        token = fields_of(await session.call_tool("run_transaction", delete))["confirmation_token"]
        other = {"statements": [{"sql": "delete from notes where body = $1", "params": ["rum"]}]}
        assert "not for these statements" in await refusal(other | {"confirmation_token": token})
        assert "not for these statements" in await refusal(delete | {"confirmation_token": token[:-8] + "AAAAAAA="})
        assert "isn't valid" in await refusal(delete | {"confirmation_token": "yes"})
        # One row more than the user has seen.
        service.query("insert into notes (body) values ('tea')", database=database)
        assert "expectation_failed" in await refusal(delete | {"confirmation_token": token})
    assert service.value("select count(*) from notes where body in ('tea', 'rum')", database=database) == 3


async def test_a_token_is_of_no_use_with_another_credential(service: Service, database: str) -> None:
    keys = [service.new_key("write"), service.new_key("write")]
    async with agent(service, "http", key=keys[0], database=database, allow_writes=True) as session:
        token = fields_of(await session.call_tool("run_transaction", _INSERT))["confirmation_token"]
    async with agent(service, "http", key=keys[1], database=database, allow_writes=True) as session:
        result = await session.call_tool("run_transaction", _INSERT | {"confirmation_token": token})
    assert result.is_error
    assert "credential" in text_of(result)


@pytest.mark.parametrize(
    ("transport", "mode"), [("stdio", "auto"), ("stdio", "legacy"), ("http", "auto")]
)  # The older protocol has no way to ask without a session.
async def test_a_client_with_a_user_asks_the_user(service: Service, database: str, transport: str, mode: str) -> None:
    def rows() -> int:
        return int(service.value("select count(*) from notes", database=database))

    before = rows()
    asked: list[str] = []
    replies = [("decline", None), ("cancel", None), ("accept", {"commit": False}), ("accept", {"commit": True})]
    remaining = iter(replies)

    async def answer(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        action, content = next(remaining)
        return await answers(action, content, asked)(context, params)  # type: ignore[return-value]  # the declared type also has errors

    async with agent(service, transport, database=database, allow_writes=True, mode=mode, asks=answer) as session:
        outcomes = [fields_of(await session.call_tool("run_transaction", _INSERT))["outcome"] for _ in replies]
    assert outcomes == ["declined", "declined", "declined", "committed"]
    assert rows() == before + 2
    assert all("insert into notes" in each and "changes 2 rows" in each for each in asked)


@pytest.mark.parametrize("padding", [" ", "/* a comment */"])
async def test_the_user_is_not_asked_about_what_can_t_be_shown(service: Service, database: str, padding: str) -> None:
    def transaction(characters: int) -> dict[str, Any]:
        first = "insert into notes (body) values ('shown')" + padding * (characters // len(padding))
        return {"statements": [{"sql": first}, {"sql": "delete from notes"}]}

    asked: list[str] = []
    asks = answers("decline", None, asked)
    async with agent(service, "http", database=database, allow_writes=True, asks=asks) as session:
        refused = await session.call_tool("run_transaction", transaction(2_000))
        assert refused.is_error
        assert "2000 can be shown" in text_of(refused)
        assert asked == []
        assert fields_of(await session.call_tool("run_transaction", transaction(1_800)))["outcome"] == "declined"
    assert "2. delete from notes\nIn a rehearsal, " in asked[0]


async def test_the_agent_can_t_answer_for_the_user(service: Service, database: str) -> None:
    asked: list[str] = []
    asks = answers("decline", None, asked)
    async with agent(service, "http", database=database, allow_writes=True, asks=asks) as session:
        first = await session.session.call_tool("run_transaction", _INSERT, allow_input_required=True)
        assert isinstance(first, types.InputRequiredResult)
        result = await session.call_tool("run_transaction", _INSERT | {"confirmation_token": first.request_state})
    assert result.is_error
    assert "the client's own question" in text_of(result)
    assert asked == []


async def test_a_read_key_can_t_write_even_if_writes_are_allowed(service: Service, database: str) -> None:
    async with agent(service, "http", key=service.new_key("read"), database=database, allow_writes=True) as session:
        (tool,) = (each for each in (await session.list_tools()).tools if each.name == "run_transaction")
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        result = await session.call_tool("run_transaction", _INSERT)
        assert result.is_error
        assert "can't write" in text_of(result)


async def test_each_call_is_in_the_audit_log_with_the_tool_s_name(service: Service) -> None:
    key = service.new_key("write", "admin")

    def entries() -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {key}"}
        found = service.http.get(f"{service.control_url}/v1/audit", params={"limit": 1000}, headers=headers).json()
        own = service.http.get(f"{service.control_url}/v1/organizations/current", headers=headers).json()
        return [each for each in found["audit"] if each["actor"]["id"] == own["credential"]["id"]]

    for transport, allow_writes in (("http", False), ("stdio", True)):
        async with agent(service, transport, key=key, allow_writes=allow_writes) as session:
            await session.call_tool("query", {"sql": "select 'not in the log'"})
            await session.call_tool("query", {"sql": "select fails"})
            await session.call_tool("run_transaction", {"statements": [{"sql": "select 1"}]})
    found = [(each["action"], each["details"].get("writes")) for each in reversed(entries())]
    # One session that can only read stands for the key in both.
    assert found == [
        ("mcp.query", False), ("session.create", None), ("mcp.query", False), ("mcp.run_transaction", False),
        ("mcp.query", False), ("mcp.query", False), ("mcp.run_transaction", True),
    ]  # fmt: skip
    assert "not in the log" not in json.dumps(entries())
    assert all(each["request_id"].startswith("req_") for each in entries())


@pytest.mark.parametrize("named", ["none", "a\0b", "MAIN", "db_" + "0" * 32])
async def test_a_call_that_is_refused_is_in_the_audit_log_without_a_database(service: Service, named: str) -> None:
    key = service.new_key("read")
    async with agent(service, "http", key=key) as session:
        refused = await session.call_tool("query", {"sql": "select 1", "database": named})
        assert "There is no such database" in text_of(refused)
    headers = {"Authorization": f"Bearer {key}"}
    own = service.http.get(f"{service.control_url}/v1/organizations/current", headers=headers).json()
    with psycopg.connect(service.directory_dsn) as directory:
        found = directory.execute(
            "select action, target_id, organization_id from audit where actor_id = %s", (own["credential"]["id"],)
        ).fetchall()
    organization_id = own["organization"]["id"]
    assert found == [("mcp.query", organization_id, organization_id)]


async def test_without_a_default_database_the_databases_can_be_listed(service: Service) -> None:
    name = f"bare{uuid4().hex[:8]}"
    service.customers.add_organization(name)
    async with agent(service, "http", key=service.new_key("read", "admin", org=name)) as session:
        assert data_in(text_of(await session.call_tool("list_databases", {}))) == "[]"
        assert "no default database" in text_of(await session.call_tool("query", {"sql": "select 1"}))
    async with agent(service, "http", key=service.new_key("read", org=name)) as session:
        listed = await session.call_tool("list_databases", {})
        assert listed.is_error
        assert "no default database" in text_of(listed)


async def test_what_an_agent_abandons_is_cancelled(service: Service, database: str) -> None:
    marker = uuid4().hex

    def runs() -> bool:
        with service.engine() as engine:
            running = "select 1 from pg_stat_activity where state = 'active' and query like %s"
            return engine.execute(running, (f"select pg_sleep(50) /* {marker}%",)).fetchone() is not None

    async with agent(service, "stdio", database=database) as session:
        call = asyncio.create_task(session.call_tool("query", {"sql": f"select pg_sleep(50) /* {marker} */"}))
        await asyncio.to_thread(wait_for, runs, 60, lambda: "it never began")
        call.cancel()
        await asyncio.to_thread(wait_for, lambda: not runs(), 60, lambda: "it still runs")


async def test_a_session_that_can_write_reads_and_can_t_outlive_its_end(service: Service, database: str) -> None:
    headers = {"Authorization": f"Bearer {service.new_key('write')}"}
    content = {"database": database}
    made = service.http.post(f"{service.control_url}/v1/session", json=content, headers=headers).json()
    token = made["session"]["token"]
    async with agent(service, "http", key=token) as session:
        assert not (await session.call_tool("query", {"sql": "select * from notes"})).is_error
        assert (await session.call_tool("query", {"sql": "delete from notes"})).is_error
        assert (await session.call_tool("query", {"sql": "select 1", "database": "main"})).is_error
        ended = {"Authorization": f"Bearer {token}"}
        service.http.delete(f"{service.control_url}/v1/session", headers=ended)
        current = f"{service.control_url}/v1/organizations/current"

        def is_refused() -> bool:
            return service.http.get(current, headers=ended).status_code == 401

        await asyncio.to_thread(wait_for, is_refused, 60, lambda: "it is still accepted")
        with pytest.raises(MCPError):
            await session.call_tool("query", {"sql": "select 1"})


async def test_a_read_session_that_was_ended_is_replaced(service: Service) -> None:
    key = service.new_key("write")
    async with agent(service, "http", key=key) as session:
        assert not (await session.call_tool("query", {"sql": "select 1"})).is_error
        with psycopg.connect(service.directory_dsn) as directory:
            ended = directory.execute(
                "update sessions set ended_at = now() where ended_at is null and scopes = '{read}' returning id"
            ).fetchall()
        assert ended
        # The data plane knows it at once, or after a moment.
        for _ in range(3):
            assert not (await session.call_tool("query", {"sql": "select 1"})).is_error


async def test_the_service_s_own_errors_reach_the_agent_in_words(service: Service) -> None:
    name = f"few{uuid4().hex[:8]}"
    service.customers.add_organization(name, tier="free")
    service.customers.add_database("main", organization=name)
    key = service.new_key("read", org=name)
    async with agent(service, "stdio", key=key) as session:
        texts = []
        for _ in range(210):
            texts.append(text_of(await session.call_tool("query", {"sql": "select 1"})))
            if "rate_limited" in texts[-1]:
                break
    assert "rate_limited" in texts[-1]


def test_without_the_extra_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['mcp'] = None; from plainsql.command import main; sys.exit(main(['mcp']))"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'plainsql[mcp]'" in done.stderr


def test_the_command_says_what_is_wrong_before_it_serves(service: Service) -> None:
    address = {"PLAINSQL_URL": service.data_url, "PLAINSQL_CA_FILE": str(service.dev["ca_file"])}
    done = run(None, "mcp", cwd=None, input=None, **address, PLAINSQL_KEY="svc_k_wrong")
    assert (done.returncode, done.stdout) == (3, "")
    assert "unauthenticated" in done.stderr


def test_the_route_is_documented_and_answers_in_the_protocol(service: Service) -> None:
    headers = {"Authorization": f"Bearer {service.api_key}", "Content-Type": "application/json"}

    def post(content: str, **more: Any) -> Any:
        return service.http.post(f"{service.control_url}/mcp", content=content, headers=headers, **more)

    listed = post('{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
    assert (listed.status_code, len(listed.json()["result"]["tools"])) == (200, 7)
    assert post("{").status_code == 400
    assert post('{"jsonrpc":"2.0","method":"notifications/initialized"}').status_code == 202
    for options in ({"allow_writes": "perhaps"}, {"database": "0.5"}, {"tools": "all"}):
        refused = post("{}", params=options)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_option")
    assert service.http.post(f"{service.control_url}/mcp", json={}).status_code == 401
    assert service.http.get(f"{service.control_url}/mcp", headers=headers).status_code == 405


def test_a_page_may_send_the_headers_of_the_protocol(service: Service) -> None:
    """Those that the official client sends, with sessions and without."""
    needed = {
        "authorization", "content-type", "accept", "last-event-id",
        MCP_PROTOCOL_VERSION_HEADER, MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_SESSION_ID,
    }  # fmt: skip
    headers = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    preflight = service.http.options(f"{service.control_url}/mcp", headers=headers)
    allowed = {each.strip().lower() for each in preflight.headers["access-control-allow-headers"].split(",")}
    assert needed <= allowed
