"""Passes an agent's calls on to the service's POST /mcp, and its answers back.

    await serve(settings, "https://localhost:8401/mcp")

The package `mcp` speaks the protocol on both sides, in the version that each side knows. If the service wants the
user's agreement to a write, an agent that can ask its user does so. For one that can't, the service issues a token.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

import httpx2
import mcp_types as types
from mcp.client import Client, ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from plainsql import VERSION
from plainsql.errors import NetworkError, ServiceError, service_error
from plainsql.settings import Settings
from plainsql.transport.sockets import tls_context

# More than the service takes for any call.
_TIMEOUT_S = 120.0
_UNAVAILABLE = "The service didn't answer."
_MAY_BE_COMMITTED = (
    "The service didn't answer, twice, and it is unknown whether the transaction has taken effect. Don't rehearse it "
    "again: call request_outcome with the key {key}, or run_transaction with the same confirmation, which takes effect "
    "once."
)

# What the service answered to the call of this task, if it wasn't the protocol's: an error of its own.
_service_errors: ContextVar[list[ServiceError]] = ContextVar("service_errors")
_call_results = TypeAdapter[types.CallToolResult | types.InputRequiredResult](
    types.CallToolResult | types.InputRequiredResult
)


async def serve(settings: Settings, address: str) -> int:
    """Serves one agent on standard input and output."""
    tls = tls_context(settings.ca_file) if settings.address.scheme == "https" else True
    async with httpx2.AsyncClient(
        verify=tls,
        headers={"Authorization": f"Bearer {settings.key}"},
        timeout=_TIMEOUT_S,
        event_hooks={"response": [note_error]},
        # No credentials and no proxies from the environment.
        trust_env=False,
    ) as http:
        server = await bridge_to(http, address)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    return 0


async def bridge_to(http: httpx2.AsyncClient, address: str) -> Server[Any]:
    """The server that an agent talks to. Raises an error if the service doesn't answer."""
    bridge = _Bridge(http, address)
    return Server(
        "plainsql",
        version=VERSION,
        instructions=await bridge.instructions(),
        on_list_tools=bridge.list_tools,
        on_call_tool=bridge.call_tool,
    )


class _Bridge:
    """The agent's calls, as requests to the service. Each stands alone."""

    def __init__(self, http: httpx2.AsyncClient, address: str) -> None:
        self._http = http
        self._address = address

    async def instructions(self) -> str | None:
        """What the service says about its tools. Raises an error if it has none."""
        async with self._service(asks_user=False) as service:
            try:
                found = await service.session.send_discover(MODERN_PROTOCOL_VERSIONS[-1])
            except MCPError as error:
                raise _error_of(error) from error
        instructions: str | None = found.get("instructions")
        return instructions

    async def list_tools(
        self, _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        async with self._service(asks_user=False) as service:
            return await service.list_tools()

    async def call_tool(
        self, agent: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            result = await self._call(agent, params)
            if isinstance(result, types.InputRequiredResult) and not _is_modern(agent):
                # An older agent is asked while its call waits. A newer one gets the question, and calls again.
                params.input_responses = await _answers(agent, result)
                params.request_state = result.request_state
                result = await self._call(agent, params)
        except (ServiceError, NetworkError) as error:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
        return result

    async def _call(
        self, agent: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """The answer to a call. A commit whose answer is lost is sent again, once: it takes effect once."""
        confirmation = _confirmation_in(params)
        answer = await self._attempt(agent, params)
        if isinstance(answer, NetworkError) and confirmation is not None:
            answer = await self._attempt(agent, params)
        if isinstance(answer, NetworkError) and confirmation is not None:
            key = confirmation.partition(".")[0]
            raise NetworkError(_MAY_BE_COMMITTED.format(key=key), outcome="unknown") from answer
        if isinstance(answer, ServiceError | NetworkError):
            raise answer
        return answer

    async def _attempt(
        self, agent: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | ServiceError | NetworkError:
        try:
            async with self._service(asks_user=_asks_user(agent)) as service:
                try:
                    return await _call(service, params)
                except MCPError as error:
                    # Raised here, it would come in a group.
                    return _error_of(error)
        except ExceptionGroup as group:
            # The package's own tasks, when the connection breaks.
            if group.split(httpx2.TransportError)[1] is not None:
                raise
            return NetworkError(_UNAVAILABLE, outcome="unknown")

    @asynccontextmanager
    async def _service(self, *, asks_user: bool) -> AsyncIterator[Client]:
        _service_errors.set([])
        transport = streamable_http_client(self._address, http_client=self._http)
        asking = _never if asks_user else None
        # In this mode, nothing is sent to begin with.
        async with Client(transport, mode=MODERN_PROTOCOL_VERSIONS[-1], elicitation_callback=asking) as client:
            yield client


async def _call(
    service: Client, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    """Not `call_tool`, which would list the tools before each call, to check what the service returns."""
    passed_on = types.CallToolRequestParams(
        name=params.name,
        arguments=params.arguments,
        input_responses=params.input_responses,
        request_state=params.request_state,
    )
    return await service.session.send_request(types.CallToolRequest(params=passed_on), _call_results)


async def _answers(agent: ServerRequestContext[Any], wanted: types.InputRequiredResult) -> types.InputResponses:
    """Asks an older agent's user."""
    answers: types.InputResponses = {}
    for name, request in (wanted.input_requests or {}).items():
        if isinstance(request.params, types.ElicitRequestFormParams):
            answers[name] = await agent.session.elicit_form(
                request.params.message, request.params.requested_schema, agent.request_id
            )
    return answers


def _confirmation_in(params: types.CallToolRequestParams) -> str | None:
    """The confirmation of a commit, which begins with its idempotency key and a dot; None for other calls."""
    found = params.request_state or (params.arguments or {}).get("confirmation_token")
    return found if isinstance(found, str) else None


def _is_modern(agent: ServerRequestContext[Any]) -> bool:
    return agent.protocol_version in MODERN_PROTOCOL_VERSIONS


def _asks_user(agent: ServerRequestContext[Any]) -> bool:
    """Whether the agent can ask its user with a form."""
    capabilities = agent.session.client_capabilities
    asking = None if capabilities is None else capabilities.elicitation
    # With neither, it is a form, as before there were others.
    return asking is not None and (asking.form is not None or asking.url is None)


async def _never(
    context: ClientRequestContext,  # noqa: ARG001  # as the package calls it
    params: types.ElicitRequestParams,  # noqa: ARG001  # the same
) -> types.ElicitResult | types.ErrorData:
    """Its presence alone says that the user can be asked. The questions come in answers, which `call_tool` reads."""
    raise AssertionError("the service sends no requests")


async def note_error(response: httpx2.Response) -> None:
    """Keeps the service's own error, of which the package `mcp` would say only that there was one."""
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return
    try:
        answer = json.loads(await response.aread())
    except ValueError:
        return
    fields = answer.get("error") if isinstance(answer, dict) else None
    # The protocol's own errors have numbers for codes.
    if isinstance(fields, dict) and isinstance(fields.get("code"), str):
        request_id = response.headers.get("x-request-id")
        error = service_error(answer, status=response.status_code, request_id=request_id)
        _service_errors.get().append(error)


def _error_of(error: MCPError) -> ServiceError | NetworkError:
    """The service's error, if it sent one, or that of the connection to it."""
    found = _service_errors.get()
    return found[-1] if found else NetworkError(f"{_UNAVAILABLE} ({error})", outcome="unknown")
