"""Carries out the calls of tools, for one caller.

    result = await Calls(parts, caller).call(params, asks_user=True)

What reads is sent with a secret that can only read, whatever the caller's own may do: PostgreSQL's read-only role is
the guard, and no code here judges SQL. The caller's own secret is used for one thing alone, a transaction of
`run_transaction`, if the URL of the request allows writes. Each call is written to the audit log before it begins.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import mcp_types as types
import msgspec

from plainsql_server.control_plane.read_sessions import ReadSessions
from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import ServiceError
from plainsql_server.core.names import DATABASE_NAME
from plainsql_server.core.principal import Scope
from plainsql_server.directory import audit, databases
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.http.control.mcp import tools
from plainsql_server.http.control.mcp.data_plane import DataPlane, Failed, Reply, Sent
from plainsql_server.http.control.mcp.refusal import Refused, TooLarge
from plainsql_server.http.control.mcp.results import (
    DATA_BYTES,
    counted,
    failure,
    result,
    shown_result,
    shown_results,
    within,
)
from plainsql_server.http.control.mcp.route import McpCaller
from plainsql_server.http.control.mcp.writing import Dialog, Writing, transaction_content

Answer = types.CallToolResult | types.InputRequiredResult
# As many as a model can choose from.
_DATABASES = 500


class Parts(NamedTuple):
    """What all calls of a process share."""

    directory: Directory
    sessions: ReadSessions
    data_plane: DataPlane


class Calls:
    """The calls of one caller."""

    def __init__(self, parts: Parts, caller: McpCaller) -> None:
        self._parts = parts
        self._caller = caller
        self._by = Actor.of(caller.principal, caller.request_id)

    @property
    def may_write(self) -> bool:
        """Whether run_transaction may write: the URL allows it, and the credential has the scope."""
        return self._caller.options.allow_writes and self._caller.principal.may(Scope.WRITE)

    async def call(self, params: types.CallToolRequestParams, *, asks_user: bool) -> Answer:
        """The result of a call. `asks_user` says whether the client can ask its user for a confirmation."""
        kind = tools.KINDS.get(params.name)
        if kind is None:
            return result(f"There is no tool {params.name[:64]!r}.", is_error=True)
        try:
            arguments = msgspec.convert(params.arguments or {}, kind.arguments)
        except msgspec.ValidationError as error:
            return result(f"The arguments are invalid: {error}.", is_error=True)
        try:
            return await self._noted(params, arguments, Dialog.of(params, asks_user=asks_user))
        except Refused as error:
            return result(str(error), is_error=True)
        except Failed as error:
            return failure(error.error)
        except ServiceError as error:
            if error.internal_context is not None:
                # The application logs it, and hides it from the client.
                raise
            return failure(error)

    async def _noted(self, params: types.CallToolRequestParams, arguments: msgspec.Struct, dialog: Dialog) -> Answer:
        """Finds the database, writes the call to the audit log, and carries it out, or refuses it."""
        named = getattr(arguments, "database", None)
        database = await self._database(named)
        writes = self.may_write and isinstance(arguments, tools.TransactionArguments)
        organization_id = self._caller.principal.organization_id
        database_id = None if database is None else database.id
        await audit.note_tool_call(
            self._parts.directory, self._by, params.name, organization_id, database_id, writes=writes
        )
        if isinstance(arguments, tools.NoArguments):
            return await self._list_databases(database)
        if database is None:
            raise _no_database(is_default=named is None and not self._bounds)
        return await self._run(arguments, database, dialog)

    async def _run(self, arguments: msgspec.Struct, database: DatabaseRecord, dialog: Dialog) -> Answer:
        match arguments:
            case tools.QueryArguments():
                return await self._query(arguments, database)
            case tools.ExplainArguments():
                return await self._explain(arguments, database)
            case tools.TransactionArguments() if self.may_write:
                return await Writing(self._parts.data_plane, self._caller).run(arguments, database.id, dialog)
            case tools.TransactionArguments():
                return await self._read_transaction(arguments, database)
            case tools.ListTablesArguments():
                return await self._list_tables(arguments, database)
            case tools.DescribeTableArguments():
                return await self._describe_table(arguments, database)
            case tools.OutcomeArguments():
                return await self._request_outcome(arguments, database)
            case _:
                raise AssertionError(f"no tool takes {type(arguments).__name__}")

    async def _query(self, arguments: tools.QueryArguments, database: DatabaseRecord) -> Answer:
        reply = await self._read_query(
            database, arguments.sql, arguments.params, arguments.timeout_s, max_rows=arguments.max_rows
        )
        data, is_truncated = shown_result(reply)
        summary = "There are more rows than are shown." if is_truncated else f"{counted(reply.row_count, 'row')}."
        return result(summary, data, truncated=is_truncated)

    async def _explain(self, arguments: tools.ExplainArguments, database: DatabaseRecord) -> Answer:
        options = "analyze, buffers, " if arguments.analyze else ""
        sql = f"explain ({options}format text) {arguments.sql}"
        reply = await self._read_query(database, sql, arguments.params, arguments.timeout_s, max_rows=tools.MOST_ROWS)
        data, is_truncated = shown_result(reply)
        return result("PostgreSQL's plan.", data, truncated=is_truncated)

    async def _read_transaction(self, arguments: tools.TransactionArguments, database: DatabaseRecord) -> Answer:
        content = transaction_content(arguments, database.id) | {"read_only": True}
        reply = await self._read(lambda sent: self._parts.data_plane.post("/v1/transaction", sent, content))
        data, is_truncated = shown_results(reply)
        return result("The statements have run. Nothing was written.", data, truncated=is_truncated)

    async def _list_tables(self, arguments: tools.ListTablesArguments, database: DatabaseRecord) -> Answer:
        try:
            reply = await self._tables(database, "columns", arguments.schema)
        except TooLarge:
            reply = None
        shown, is_cut = ([], True) if reply is None else within(reply.tables, DATA_BYTES)
        if reply is None or is_cut:
            # The names alone say more than the columns of the first tables.
            reply = await self._tables(database, "names", arguments.schema)
            shown, is_cut = within(reply.tables, DATA_BYTES)
        is_truncated = is_cut or reply.truncated
        return result(f"{counted(len(shown), 'table')}.", f"[{','.join(shown)}]", truncated=is_truncated)

    async def _describe_table(self, arguments: tools.DescribeTableArguments, database: DatabaseRecord) -> Answer:
        reply = await self._tables(database, "full", arguments.schema)
        found = [each for each in reply.tables if msgspec.json.decode(each, type=_Named).name == arguments.table]
        if not found:
            raise Refused("There is no such table or view in this schema. list_tables shows all.")
        shown, is_cut = within(found, DATA_BYTES)
        return result("The table.", f"[{','.join(shown)}]", truncated=is_cut)

    async def _request_outcome(self, arguments: tools.OutcomeArguments, database: DatabaseRecord) -> Answer:
        path = f"/v1/requests/{quote(arguments.key, safe='')}"
        reply = await self._read(lambda sent: self._parts.data_plane.get(path, sent._replace(database=database.id)))
        outcome = str(reply.request["outcome"])
        return result(f"The outcome is: {outcome}.", outcome=outcome)

    async def _list_databases(self, own: DatabaseRecord | None) -> Answer:
        principal = self._caller.principal
        if principal.may(Scope.ADMIN) and not self._bounds:
            shown = await databases.list_(self._parts.directory, principal.organization_id, _DATABASES, None)
            summary = f"{counted(len(shown), 'database')}."
        elif own is None:
            raise _no_database(is_default=not self._bounds)
        else:
            shown, summary = [own], "The database that is used."
            if not principal.may(Scope.ADMIN):
                summary += " To list others, the key needs the scope admin."
        listed = [{"name": each.name, "id": each.id, "state": each.state, "default": each.is_default} for each in shown]
        return result(summary, json.dumps(listed, ensure_ascii=False), truncated=len(shown) == _DATABASES)

    async def _tables(self, database: DatabaseRecord, detail: str, schema: str | None) -> Reply:
        get = self._parts.data_plane.get
        return await self._read(
            lambda sent: get("/tables", sent._replace(database=database.id), detail=detail, schema=schema)
        )

    async def _read_query(
        self, database: DatabaseRecord, sql: str, params: list[Any], timeout_s: int, *, max_rows: int
    ) -> Reply:
        content = {
            "sql": sql, "params": params, "database": database.id, "row_format": "array", "max_rows": max_rows,
            "timeout_ms": timeout_s * 1000, "read_only": True,
        }  # fmt: skip
        return await self._read(lambda sent: self._parts.data_plane.post("/v1/query", sent, content))

    async def _read(self, send: Callable[[Sent], Awaitable[Reply]]) -> Reply:
        """Sends a request with a secret that can only read."""
        caller, sessions = self._caller, self._parts.sessions
        for is_last in (False, True):
            secret = await sessions.secret_for(caller.principal, caller.secret, self._by)
            try:
                return await send(Sent(secret, caller.request_id, caller.principal.organization_id))
            except Failed as error:
                # The caller itself has just been authenticated: its read session has ended.
                if error.error.code != "unauthenticated" or is_last:
                    raise
                sessions.forget(caller.principal)
        raise AssertionError("the last attempt returns or raises")

    @property
    def _bounds(self) -> list[str]:
        """The database that the credential is bound to, and the one that the URL names."""
        own = (self._caller.principal.database, self._caller.options.database)
        return [each for each in own if each is not None]

    async def _database(self, named: str | None) -> DatabaseRecord | None:
        """The database of a call. None if there is none, or if the caller may not use it."""
        bounds = self._bounds
        names: list[str | None] = [named, *bounds] if named is not None else [*bounds] or [None]
        found = [await self._find(name) for name in names]
        database = found[0]
        if database is None or any(each is None or each.id != database.id for each in found):
            return None
        return database

    async def _find(self, name: str | None) -> DatabaseRecord | None:
        # An agent may send any text, even some that PostgreSQL can't compare with a name.
        if name is not None and not DATABASE_NAME.match(name):
            return None
        return await databases.find(self._parts.directory, self._caller.principal.organization_id, name)


def _no_database(*, is_default: bool) -> Refused:
    if is_default:
        return Refused(
            "Your organization has no default database. Name one with the argument `database`. With a key that has the "
            "scope admin, list_databases shows all."
        )
    return Refused("There is no such database, or you may not use it. list_databases shows those that you may.")


class _Named(msgspec.Struct):
    name: str
