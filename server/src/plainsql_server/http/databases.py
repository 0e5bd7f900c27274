"""/v1/databases: an organization's databases.

Owns the shapes. The rules are `control_plane/databases.py`'s.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from plainsql_server.control_plane import databases
from plainsql_server.core.errors import RequestError
from plainsql_server.core.ids import Kind
from plainsql_server.core.principal import Principal
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.http.banner import Urls
from plainsql_server.http.control import PageOptions, administrator, answer, id_of, page, read_body, read_cursor
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response


class NewDatabaseBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/databases."""

    name: str


class ChangeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of PATCH /v1/databases/{id}."""

    name: str | None = None
    default: bool | None = None


class DeletionOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of DELETE /v1/databases/{id}."""

    restorable: bool = True


_new_database_body = msgspec.json.Decoder(NewDatabaseBody)
_change_body = msgspec.json.Decoder(ChangeBody)


class DatabaseRoutes:
    """The handlers of the database routes."""

    def __init__(self, directory: Directory, urls: Urls, restore_s: int, there_is_work: Callable[[], None]) -> None:
        self._directory = directory
        self._urls = urls
        self._restore_s = restore_s
        # Has what is to be dropped soon looked at at once.
        self._there_is_work = there_is_work

    async def post(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = await read_body(request, principal, _new_database_body)
        created = await databases.create(self._directory, principal.organization_id, body.name, by)
        return await self._answer(request, 201, created)

    async def list_(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        after = read_cursor(options.cursor)
        found = await databases.list_(self._directory, principal.organization_id, options.limit + 1, after)
        sizes = await databases.sizes_bytes(self._directory, found)
        return page(
            request, "databases", found, options.limit,
            shown=lambda database: self._shown(database, sizes.get(database.id)), position=lambda database: database.id,
        )  # fmt: skip

    async def get(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        return await self._answer(request, 200, await self._named(request, principal))

    async def patch(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        database = await self._named(request, principal)
        body = await read_body(request, principal, _change_body)
        if body.default is False:
            raise RequestError("malformed_request", "Make another database the default instead.")
        name = None if body.name == database.name else body.name
        if name is not None and body.default:
            database = await databases.rename_and_make_default(self._directory, database, name, by)
        elif name is not None:
            database = await databases.rename(self._directory, database, name, by)
        elif body.default:
            database = await databases.make_default(self._directory, database, by)
        return await self._answer(request, 200, database)

    async def delete(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        restorable = request.options(DeletionOptions).restorable
        database = await self._named(request, principal)
        deleting = await databases.delete(
            self._directory, database, restore_s=self._restore_s, restorable=restorable, by=by
        )
        if deleting.restores_to is None:
            self._there_is_work()
        return await self._answer(request, 202, deleting)

    async def restore(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        database = await self._named(request, principal)
        return await self._answer(request, 200, await databases.restore(self._directory, database, by))

    async def _named(self, request: Request, principal: Principal) -> DatabaseRecord:
        database_id = id_of(request, Kind.DATABASE, "database_not_found")
        return await databases.get(self._directory, database_id, principal.organization_id)

    async def _answer(self, request: Request, status: int, database: DatabaseRecord) -> Response:
        sizes = await databases.sizes_bytes(self._directory, [database])
        return answer(request, status, database=self._shown(database, sizes.get(database.id)))

    def _shown(self, database: DatabaseRecord, size_bytes: int | None) -> dict[str, Any]:
        is_restorable = database.state is DatabaseState.DELETING and database.restores_to is not None
        return {
            "id": database.id,
            "name": database.name,
            "state": database.state,
            "default": database.is_default,
            "created_at": database.created_at,
            "size_bytes": size_bytes,
            "restorable_until": database.restorable_until if is_restorable else None,
            "urls": {
                "data_url": self._urls.data_url,
                "alias_url": self._urls.alias_url,
                "control_url": self._urls.control_url,
            },
        }
