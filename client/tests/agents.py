"""Agents for tests: the official client of the Model Context Protocol, over both of its transports.

async with agent(service, "stdio", key=key, database="main") as session:
    await session.call_tool("query", {"sql": "select 1"})
"""

import os
import re
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from server.tests.service import Service

# Each transport, and both ages of the protocol: the older one begins with a handshake. A process takes two seconds to
# start, so not every test uses each of them.
WAYS_IN = (("stdio", "legacy"), ("http", "auto"), ("http", "legacy"))


@asynccontextmanager
async def agent(
    service: Service,
    transport: str,
    *,
    key: str | None = None,
    database: str | None = None,
    allow_writes: bool = False,
    mode: str = "auto",
    asks: ElicitationFnT | None = None,
) -> AsyncIterator[Client]:
    """A connected client. With `asks`, it has a user to ask."""
    key = key or service.api_key
    if transport == "stdio":
        arguments = ["-m", "plainsql", "mcp", *(["--allow-writes"] if allow_writes else [])]
        arguments += ["--database", database] if database else []
        server = StdioServerParameters(command=sys.executable, args=arguments, env=environment(service, key))
        async with Client(server, mode=mode, elicitation_callback=asks) as session:
            yield session
        return
    options = ({"database": database} if database else {}) | ({"allow_writes": "true"} if allow_writes else {})
    trust = ssl.create_default_context(cafile=service.dev["ca_file"])
    async with httpx2.AsyncClient(verify=trust, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        address = streamable_http_client(f"{service.control_url}/mcp?{urlencode(options)}", http_client=http)
        async with Client(address, mode=mode, elicitation_callback=asks) as session:
            yield session


def environment(service: Service, key: str) -> dict[str, str]:
    """The environment in which `plainsql` uses this service."""
    settings = {"URL": service.data_url, "KEY": key, "CA_FILE": str(service.dev["ca_file"])}
    return {"PATH": os.environ["PATH"], **{f"PLAINSQL_{name}": value for name, value in settings.items()}}


def text_of(result: types.CallToolResult) -> str:
    """All that a language model sees of a result."""
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def data_in(text: str) -> str:
    """What is between the two lines with the boundary. Fails unless there is exactly one such block."""
    lines = text.split("\n")
    (begin,) = (at for at, line in enumerate(lines) if re.fullmatch("<untrusted-data-[0-9a-f]{32}>", line))
    boundary = lines[begin][1:-1]
    (end,) = (at for at, line in enumerate(lines) if line == f"</{boundary}>")
    data = "\n".join(lines[begin + 1 : end])
    assert boundary.removeprefix("untrusted-data-") not in data
    return data


def fields_of(result: types.CallToolResult) -> dict[str, Any]:
    """The structured content, which must be there."""
    assert not result.is_error, result
    assert isinstance(result.structured_content, dict)
    return result.structured_content
