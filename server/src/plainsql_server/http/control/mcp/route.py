"""The handler of POST /mcp: who calls, with which options, and whether this installation has the package `mcp`.

route = McpRoute(directory, DataPlaneAddress("https://localhost:8400", ca_file=None))
await route.post(request, principal)
await route.close()
"""

import asyncio
from importlib import import_module, util
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from plainsql_server.control_plane.read_sessions import ReadSessions
from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.names import DATABASE_NAME
from plainsql_server.core.principal import Principal
from plainsql_server.directory.connection import Directory
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.app.fields import DatabaseName
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response

if TYPE_CHECKING:
    from plainsql_server.http.control.mcp.serving import McpServing

# A statement of any tier, with room for JSON's escapes.
MAX_MCP_BODY_BYTES = 4 * 1024 * 1024


class McpOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of POST /mcp. The user writes it into the agent's configuration; the agent can't change it."""

    database: Annotated[
        DatabaseName | None, Meta(description="The only database that the tools may use, by its name or id.")
    ] = None
    allow_writes: Annotated[
        bool, Meta(description="Let `run_transaction` write, if the credential has the scope `write`.")
    ] = False


class DataPlaneAddress(NamedTuple):
    """Where the tools send SQL: the data plane's URL, and the CA that it is trusted by (None: the system's)."""

    url: str
    ca_file: str | None


class McpCaller(NamedTuple):
    """The caller of one request, what it sent, and what it asked for."""

    principal: Principal
    secret: str
    request_id: str
    options: McpOptions


class McpRoute:
    """Serves POST /mcp. Each request stands alone: nothing is kept between them but connections and read sessions."""

    def __init__(self, directory: Directory, address: DataPlaneAddress) -> None:
        self._directory = directory
        self._address = address
        self._loading = asyncio.Lock()
        self._serving: McpServing | None = None

    async def post(self, request: Request, principal: Principal) -> Response:
        options = request.options(McpOptions)
        if options.database is not None and not DATABASE_NAME.match(options.database):
            raise RequestError("invalid_option", f"The query string is invalid: {options.database!r} is no database.")
        caller = McpCaller(principal, secret_of(request), request.id, options)
        return await (await self._loaded()).respond(request, caller)

    async def close(self) -> None:
        """Closes the connections to the data plane."""
        if self._serving is not None:
            await self._serving.close()

    async def _loaded(self) -> "McpServing":
        async with self._loading:
            if self._serving is None:
                if util.find_spec("mcp") is None:
                    raise AccessError(
                        "mcp_not_installed",
                        "This service doesn't offer MCP.",
                        hint="The operator can install it: pip install 'plainsql-server[mcp]'",
                    )
                # In a thread: it takes a second, and other requests must not wait for it.
                module = await asyncio.to_thread(import_module, "plainsql_server.http.control.mcp.serving")
                serving: McpServing = module.McpServing(self._directory, ReadSessions(self._directory), self._address)
                self._serving = serving
            return self._serving
