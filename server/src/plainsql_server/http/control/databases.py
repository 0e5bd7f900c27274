"""/v1/databases: models and handlers for an organization's databases.

The rules are in `control_plane/databases.py`.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.control_plane import branches, databases
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.control_plane.names import check_expiry
from plainsql_server.control_plane.restoring import restores
from plainsql_server.core.actor import Actor
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord, DatabaseState
from plainsql_server.http.app.fields import DatabaseName
from plainsql_server.http.app.health import Urls
from plainsql_server.http.control.answering import administrator, decoded_body
from plainsql_server.http.control.paging import PageOptions, page, read_cursor
from plainsql_server.http.control.restores import Restore, RestoreAnswer, shown
from plainsql_server.http.server.answers import Cursor, RequestId, Success, Time
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response


class NewDatabaseBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/databases."""

    name: Annotated[DatabaseName, Meta(description="Name of the new database.")]
    branch_of: Annotated[
        DatabaseName | None,
        Meta(description="Name or id of the database that the new one is a copy of. Without it, the new one is empty."),
    ] = None
    at: Annotated[
        Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(
            description="Copy it as it was then. In the past, with a time zone. Only for a branch. Answered with 202."
        ),
    ] = None
    expires_at: Annotated[
        Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="When the branch is deleted for good. In the future, with a time zone. Only for a branch."),
    ] = None


class RestoreBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/databases/{id}/restore. Without a field, a deleted database is restored."""

    at: Annotated[
        Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="Restore what the database was then. In the past, with a time zone. Answered with 202."),
    ] = None
    name: Annotated[
        DatabaseName | None,
        Meta(
            description="Only with `at`: restore to a new database with this name, a branch, and change nothing here."
        ),
    ] = None


class DatabaseChangeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of PATCH /v1/databases/{id}."""

    name: Annotated[DatabaseName | None, Meta(description="The new name.")] = None
    default: Annotated[
        Annotated[bool, Meta(extra_json_schema={"const": True})] | None,
        Meta(description="Make it the default: the database used by requests that name none."),
    ] = None


class DeletionOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of DELETE /v1/databases/{id}."""

    restorable: Annotated[bool, Meta(description="`false` deletes it permanently, with no restore.")] = True


class DatabaseUrls(msgspec.Struct, kw_only=True):
    """The URLs to reach the database at."""

    data_url: Annotated[str, Meta(description="URL of the data plane.")]
    alias_url: Annotated[str | None, Meta(description="URL of the alias host, if there is one.")]
    control_url: Annotated[str, Meta(description="URL of the control plane.")]


class Database(msgspec.Struct, kw_only=True):
    """A database."""

    id: Annotated[str, Meta(description="Permanent identifier.")]
    name: Annotated[str, Meta(description="The name you gave it.")]
    state: Annotated[
        DatabaseState, Meta(description="Where it is in its life cycle. Only a `ready` database accepts queries.")
    ]
    default: Annotated[bool, Meta(description="Whether requests that name no database use this one.")]
    created_at: Annotated[Time, Meta(description="When it was created.")]
    size_bytes: Annotated[int | None, Meta(description="Size on disk, updated every few seconds. Null if unknown.")]
    restorable_until: Annotated[
        Time | None, Meta(description="When a deleted database can no longer be restored. Null if it can't be.")
    ]
    branch_of: Annotated[str | None, Meta(description="Id of the database that it was copied from. Null if none.")]
    expires_at: Annotated[Time | None, Meta(description="When it is deleted by itself. Null if it isn't.")]
    urls: DatabaseUrls


class DatabaseAnswer(msgspec.Struct, kw_only=True):
    """One database."""

    success: Success = True
    database: Database
    request_id: RequestId


class BranchAtAnswer(msgspec.Struct, kw_only=True):
    """A branch that is being made, and the restore that makes it."""

    success: Success = True
    database: Database
    restore: Restore
    request_id: RequestId


class DatabasesAnswer(msgspec.Struct, kw_only=True):
    """A page of databases."""

    success: Success = True
    databases: list[Database]
    next: Cursor
    request_id: RequestId


_new_database_body = msgspec.json.Decoder(NewDatabaseBody)
_restore_body = msgspec.json.Decoder(RestoreBody)
_change_body = msgspec.json.Decoder(DatabaseChangeBody)


class DatabaseRoutes:
    """The handlers of the database routes."""

    def __init__(self, directory: Directory, urls: Urls, restore_s: int, there_is_work: Callable[[], None]) -> None:
        self._directory = directory
        self._urls = DatabaseUrls(data_url=urls.data_url, alias_url=urls.alias_url, control_url=urls.control_url)
        self._restore_s = restore_s
        # Triggers the cleanup of permanently deleted databases without delay.
        self._there_is_work = there_is_work

    async def post(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        body = decoded_body(request, _new_database_body)
        branch = await self._branch(body, principal)
        owner_id = principal.organization_id
        if branch is not None and body.at is not None:
            return await self._branch_at(request, body.name, branch, body.at, by)
        if branch is None:
            created = await databases.create(self._directory, owner_id, body.name, by)
        else:
            created = await branches.create(self._directory, owner_id, body.name, branch, by)
        return await self._answer(request, 201, created)

    async def _branch(self, body: NewDatabaseBody, principal: Principal) -> NewBranch | None:
        if body.branch_of is None:
            if body.expires_at is not None or body.at is not None:
                field = "at" if body.at is not None else "expires_at"
                raise RequestError("malformed_request", f"`{field}` is only possible with `branch_of`.")
            return None
        check_expiry("a branch", body.expires_at)
        parent = await databases.get_named(self._directory, principal.organization_id, body.branch_of)
        return NewBranch(parent, body.expires_at)

    async def _branch_at(self, request: Request, name: str, branch: NewBranch, point: datetime, by: Actor) -> Response:
        restore = await restores.request_branch(self._directory, name, branch, point, by)
        database = await databases.get(self._directory, restore.target_id)
        answer = BranchAtAnswer(
            database=self._shown(database, None), restore=shown(restore), request_id=request.id
        )  # fmt: skip
        return json_response(202, answer)

    async def list_(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        after = read_cursor(options.cursor)
        found = await databases.list_(self._directory, principal.organization_id, options.limit + 1, after)
        sizes = await databases.sizes_bytes(self._directory, found)
        here, next_cursor = page(found, options.limit, lambda database: database.id)
        shown = [self._shown(database, sizes.get(database.id)) for database in here]
        return json_response(200, DatabasesAnswer(databases=shown, next=next_cursor, request_id=request.id))

    async def get(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        return await self._answer(request, 200, await self._named(request, principal))

    async def patch(self, request: Request, principal: Principal) -> Response:
        by = administrator(request, principal)
        database = await self._named(request, principal)
        body = decoded_body(request, _change_body)
        if body.default is False:
            raise RequestError(
                "malformed_request", "`default` can only be true. Make another database the default instead."
            )
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
        body = decoded_body(request, _restore_body)
        if body.at is None:
            if body.name is not None:
                raise RequestError("malformed_request", "`name` is only possible with `at`.")
            return await self._answer(request, 200, await databases.restore(self._directory, database, by))
        if body.name is None:
            restore = await restores.request(self._directory, database, body.at, by)
        else:
            branch = NewBranch(database, None)
            restore = await restores.request_branch(self._directory, body.name, branch, body.at, by)
        return json_response(202, RestoreAnswer(restore=shown(restore), request_id=request.id))

    async def _named(self, request: Request, principal: Principal) -> DatabaseRecord:
        return await databases.get_shown(self._directory, principal.organization_id, request.path_parameter)

    async def _answer(self, request: Request, status: int, database: DatabaseRecord) -> Response:
        sizes = await databases.sizes_bytes(self._directory, [database])
        shown = self._shown(database, sizes.get(database.id))
        return json_response(status, DatabaseAnswer(database=shown, request_id=request.id))

    def _shown(self, database: DatabaseRecord, size_bytes: int | None) -> Database:
        is_restorable = database.state is DatabaseState.DELETING and database.restores_to is not None
        return Database(
            id=database.id,
            name=database.name,
            state=DatabaseState.CREATING if database.is_being_branched else database.state,
            default=database.is_default,
            created_at=database.created_at,
            size_bytes=size_bytes,
            restorable_until=database.restorable_until if is_restorable else None,
            branch_of=database.branch_of,
            expires_at=database.expires_at,
            urls=self._urls,
        )
