"""The parts of POST /mcp that need no service: confirmations, marks, and the client of the data plane."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import util

import mcp_types as types
import msgspec
import pytest

from plainsql_server.control_plane.read_sessions import ReadSessions
from plainsql_server.core.errors import AccessError, EngineError
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.connection import Directory
from plainsql_server.http.control.mcp.calls import Calls, Parts
from plainsql_server.http.control.mcp.confirmation import LIFE_S, Confirmation, Holder, bound_to, issue, new_key, opened
from plainsql_server.http.control.mcp.data_plane import Bounds, DataPlane, Failed, ResultReply, Sent
from plainsql_server.http.control.mcp.refusal import Lost, Refused
from plainsql_server.http.control.mcp.results import DATA_BYTES, shown_result
from plainsql_server.http.control.mcp.route import DataPlaneAddress, McpCaller, McpOptions, McpRoute
from plainsql_server.http.control.mcp.tools import KINDS, tools
from plainsql_server.http.control.mcp.writing import visible
from plainsql_server.http.server.requests import Request

pytestmark = pytest.mark.unit

_NOW_S = 1_000_000.0
_BOUND = bound_to([{"sql": "delete from notes", "params": [1]}], "db_1")


def confirmation(holder: Holder = "agent") -> Confirmation:
    return Confirmation(holder, int(_NOW_S) + LIFE_S, new_key(), [3])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("delete from notes where body = 'é 😀 漢'", "delete from notes where body = 'é 😀 漢'"),
        ("where id = 1 --\n or true", "where id = 1 --\\n or true"), ("a\r\tb\x1b[2K", "a\\r\\tb\\x1b[2K"),
        ("\u202edrop\u2066", "\\u202edrop\\u2066"), ("a\u200bb\u2060\ufeff", "a\\u200bb\\u2060\\ufeff"),
        ("\u3164\uffa0\u115f\u1160\u2800", "\\u3164\\uffa0\\u115f\\u1160\\u2800"),
        ("a\xa0\xad\u2028", "a\\xa0\\xad\\u2028"),
        ("x\ufe0f\u034f\u17b4\u180b\U000e0041\U000e0100", "x\\ufe0f\\u034f\\u17b4\\u180b\\U000e0041\\U000e0100"),
        ("\ud800", "\\ud800"),
    ],
)  # fmt: skip
def test_what_a_user_agrees_to_has_no_hidden_character(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_confirmation_holds_until_it_expires() -> None:
    made = confirmation()
    token = issue("secret", _BOUND, made)
    assert opened("secret", _BOUND, token, "agent", _NOW_S + LIFE_S) == made
    with pytest.raises(Refused, match=f"has expired.*request_outcome with the key {made.idempotency_key}"):
        opened("secret", _BOUND, token, "agent", _NOW_S + LIFE_S + 1)


def test_a_confirmation_holds_for_what_it_was_made_for_alone() -> None:
    token = issue("secret", _BOUND, confirmation())
    others = [
        bound_to([{"sql": "delete from notes", "params": [2]}], "db_1"),
        bound_to([{"sql": "delete from notes;", "params": [1]}], "db_1"),
        bound_to([{"sql": "delete from notes", "params": [1]}], "db_2"),
        bound_to([{"sql": "delete from notes", "params": [1]}] * 2, "db_1"),
    ]
    for other in others:
        with pytest.raises(Refused, match="not for these statements"):
            opened("secret", other, token, "agent", _NOW_S)
    with pytest.raises(Refused, match="credential"):
        opened("another", _BOUND, token, "agent", _NOW_S)


def test_a_confirmation_of_the_client_is_not_one_of_the_agent() -> None:
    for holder, other in (("client", "agent"), ("agent", "client")):
        token = issue("secret", _BOUND, msgspec.structs.replace(confirmation(), holder=holder))
        with pytest.raises(Refused, match="the client's own question"):
            opened("secret", _BOUND, token, other, _NOW_S)  # type: ignore[arg-type]  # both are holders


def test_no_changed_token_is_accepted() -> None:
    token = issue("secret", _BOUND, confirmation())
    assert token.startswith("mcp-")
    changed = [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token))]
    changed += [token[:at] for at in range(0, len(token), 4)] + [token + token, "", "é", "\0"]
    raw = base64.urlsafe_b64decode(token.partition(".")[2])
    # The last character of base64 may have bits that mean nothing.
    for each in (other for other in changed if not is_same(token, other, raw)):
        with pytest.raises(Refused):
            opened("secret", _BOUND, each, "agent", _NOW_S)


def is_same(token: str, other: str, raw: bytes) -> bool:
    (key, _, _), (other_key, _, signed) = token.partition("."), other.partition(".")
    try:
        return key == other_key and base64.b64decode(signed, altchars=b"-_", validate=True) == raw
    except ValueError:
        return False


def test_rows_are_cut_between_two_and_never_within_one() -> None:
    rows = [msgspec.Raw(json.dumps(["x" * 1000]).encode()) for _ in range(200)]
    text, is_cut = shown_result(ResultReply(columns=["a"], types=["text"], rows=rows))
    assert is_cut
    assert DATA_BYTES - 2_000 < len(text) < DATA_BYTES + 1_000
    assert {row[0] for row in json.loads(text)["rows"]} == {"x" * 1000}
    one = msgspec.Raw(json.dumps(["x" * DATA_BYTES]).encode())
    text, is_cut = shown_result(ResultReply(columns=["a"], types=["text"], rows=[one]))
    assert (json.loads(text)["rows"], is_cut) == ([], True)


def test_only_the_tool_that_may_write_says_so() -> None:
    for may_write in (False, True):
        hints = {each.name: each.annotations for each in tools(may_write=may_write)}
        writing = [name for name, each in hints.items() if each is not None and not each.read_only_hint]
        assert writing == (["run_transaction"] if may_write else [])
    assert all(each.input_schema["type"] == "object" for each in tools(may_write=True))
    assert all(kind.arguments.__struct_config__.forbid_unknown_fields for kind in KINDS.values())


async def test_without_the_package_the_route_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    route = McpRoute(None, DataPlaneAddress("https://localhost", None))  # type: ignore[arg-type]  # not reached
    request = Request("POST", "/mcp", b"", {b"authorization": b"Bearer svc_k_x"})
    with pytest.raises(AccessError, match="doesn't offer MCP") as raised:
        await route.post(request, Principal("org", "key", "free", frozenset([Scope.READ])))
    assert raised.value.code == "mcp_not_installed"
    await route.close()


@asynccontextmanager
async def data_plane(*answers: bytes) -> AsyncIterator[tuple[DataPlane, list[bytes]]]:
    """A client whose data plane gives these answers, one for each connection. An empty one closes it."""
    requests: list[bytes] = []
    remaining = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(remaining.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = DataPlane(DataPlaneAddress(f"http://127.0.0.1:{port}", None))
        yield client, requests
        await client.close()


def http(status: int, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} -\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_a_request_whose_connection_breaks_is_sent_again_once() -> None:
    good = http(200, b'{"rows":[[1]],"row_count":1}')
    async with data_plane(b"", good) as (client, requests):
        reply = await client.post("/v1/query", Sent("svc_k_x", "req_1", "org_1"), {})
    assert reply.row_count == 1
    assert len(requests) == 2
    assert b"x-request-id: req_1" in requests[0].lower()
    async with data_plane(b"", b"") as (client, requests):
        with pytest.raises(Lost, match="unavailable"):
            await client.post("/v1/query", Sent("svc_k_x", "req_1", "org_1"), {})


async def test_answers_that_are_no_result_are_refused() -> None:
    error = b'{"error":{"code":"forbidden","message":"No.","retryable":false,"outcome":"not_executed"}}'
    async with data_plane(http(403, error)) as (client, _):
        with pytest.raises(Failed) as failed:
            await client.get("/tables", Sent("svc_k_x", "req_1", "org_1", database="db_1"))
        assert failed.value.error.code == "forbidden"
    async with data_plane(http(200, b"event: columns", "text/event-stream")) as (client, _):
        with pytest.raises(Refused, match="STREAM"):
            await client.post("/v1/query", Sent("svc_k_x", "req_1", "org_1"), {})
    async with data_plane(http(502, b"{}")) as (client, _):
        with pytest.raises(Refused, match="status 502"):
            await client.post("/v1/query", Sent("svc_k_x", "req_1", "org_1"), {})
    async with data_plane(http(200, b'"' + b"x" * (2 * 1024 * 1024) + b'"')) as (client, _):
        with pytest.raises(Refused, match="larger than"):
            await client.post("/v1/query", Sent("svc_k_x", "req_1", "org_1"), {})


@asynccontextmanager
async def slow_data_plane(bounds: Bounds) -> AsyncIterator[tuple[DataPlane, asyncio.Event]]:
    """A client whose data plane answers requests with the secret `slow` only when the event is set."""
    may_answer = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"bearer slow" in (await reader.readuntil(b"\r\n\r\n")).lower():
            await may_answer.wait()
        writer.write(http(200, b'{"row_count":1}'))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = DataPlane(DataPlaneAddress(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None), bounds)
        yield client, may_answer
        may_answer.set()
        await client.close()


async def test_an_organization_s_slow_calls_leave_another_s_answered() -> None:
    async with slow_data_plane(Bounds(connections=4, calls_per_organization=3)) as (client, may_answer):
        slow = [asyncio.create_task(client.post("/v1/query", Sent("slow", "req_1", "org_1"), {})) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match=r"3 calls of tools running.*Call again"):
            await client.post("/v1/query", Sent("fast", "req_2", "org_1"), {})
        assert (await client.post("/v1/query", Sent("fast", "req_3", "org_2"), {})).row_count == 1
        may_answer.set()
        assert [reply.row_count for reply in await asyncio.gather(*slow)] == [1, 1, 1]
        assert (await client.post("/v1/query", Sent("fast", "req_4", "org_1"), {})).row_count == 1


async def test_a_call_that_gets_no_connection_can_be_made_again() -> None:
    async with slow_data_plane(Bounds(connections=1, wait_s=0.05)) as (client, may_answer):
        slow = asyncio.create_task(client.post("/v1/query", Sent("slow", "req_1", "org_1"), {}))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match=r"has not been run\. Call again") as raised:
            await client.post("/v1/transaction", Sent("fast", "req_2", "org_2", "mcp-7"), {})
        assert not isinstance(raised.value, Lost)
        may_answer.set()
        await slow


async def test_the_service_s_own_failure_is_raised_so_that_it_is_logged() -> None:
    caller = McpCaller(Principal("org_1", "key_1", "free", frozenset([Scope.READ])), "svc_k_x", "req_1", McpOptions())
    params = types.CallToolRequestParams(name="query", arguments={"sql": "select 1"})
    async with data_plane() as (client, requests), Directory.open("host=/nowhere") as directory:
        calls = Calls(Parts(directory, ReadSessions(directory), client), caller)
        with pytest.raises(EngineError) as raised:
            await calls.call(params, asks_user=False)
    assert raised.value.internal_context is not None
    assert requests == []
