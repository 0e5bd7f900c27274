"""/v1/restores: restores to a point in time, and how far they are. `databases.py` has the routes that ask for them.

The rules are in `control_plane/restoring/restores.py`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.control_plane.restoring import restores
from plainsql_server.core.errors import AccessError
from plainsql_server.core.ids import Kind, is_id
from plainsql_server.core.principal import Principal
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.restoring import restores as stored
from plainsql_server.directory.restoring.restores import RestoreRecord, RestoreState
from plainsql_server.http.control.answering import administrator
from plainsql_server.http.control.paging import PageOptions, page, read_cursor
from plainsql_server.http.server.answers import Count, Cursor, RequestId, Success, Time
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response


class RestoreFailure(msgspec.Struct, kw_only=True):
    """Why a restore has failed."""

    code: Annotated[str, Meta(description="Name of the reason, as in other errors.")]
    message: Annotated[str, Meta(description="The reason, for people.")]
    hint: Annotated[str | None, Meta(description="What you can do.")]


class Restore(msgspec.Struct, kw_only=True):
    """A restore of a database to a point in time."""

    id: Annotated[str, Meta(description="Identifier of the restore.")]
    state: Annotated[RestoreState, Meta(description="`waiting`, `running`, and then `done` or `failed`.")]
    database_id: Annotated[str, Meta(description="The database that is restored.")]
    branch_id: Annotated[
        str | None, Meta(description="The branch that gets what was restored. Null: the database itself does.")
    ]
    at: Annotated[Time, Meta(description="The point in time.")]
    step: Annotated[str | None, Meta(description="What is being done, for people. Null unless it is running.")]
    done_bytes: Annotated[Count | None, Meta(description="How much of the step is done. Null if unknown.")]
    total_bytes: Annotated[Count | None, Meta(description="The size of the step. Null if unknown.")]
    seconds_left: Annotated[Count | None, Meta(description="How long the step still takes. Null if unknown.")]
    replaced_id: Annotated[
        str | None,
        Meta(description="The deleted database that has the replaced content, and can be restored for a while."),
    ]
    missing_transactions: Annotated[
        Count | None,
        Meta(description="Transactions over several databases that were being committed then, and are missing here."),
    ]
    error: Annotated[RestoreFailure | None, Meta(description="Why it has failed. Null unless it has.")]
    created_at: Annotated[Time, Meta(description="When it was asked for.")]
    started_at: Annotated[Time | None, Meta(description="When it was begun.")]
    ended_at: Annotated[Time | None, Meta(description="When it was done or failed.")]


class RestoreAnswer(msgspec.Struct, kw_only=True):
    """One restore."""

    success: Success = True
    restore: Restore
    request_id: RequestId


class RestoresAnswer(msgspec.Struct, kw_only=True):
    """A page of restores, newest first."""

    success: Success = True
    restores: list[Restore]
    next: Cursor
    request_id: RequestId


class RestoreRoutes:
    """The handlers of the restore routes."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def list_(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        options = request.options(PageOptions)
        before = read_cursor(options.cursor)
        found = await stored.list_(self._directory, principal.organization_id, options.limit + 1, before)
        here, next_cursor = page(found, options.limit, lambda restore: restore.id)
        answer = RestoresAnswer(restores=[shown(each) for each in here], next=next_cursor, request_id=request.id)
        return json_response(200, answer)

    async def get(self, request: Request, principal: Principal) -> Response:
        administrator(request, principal)
        restore_id = request.path_parameter
        if not is_id(restore_id, Kind.RESTORE):
            raise AccessError("restore_not_found", f"There is no restore {restore_id!r}.")
        found = await restores.get(self._directory, restore_id, principal.organization_id)
        return json_response(200, RestoreAnswer(restore=shown(found), request_id=request.id))


def shown(restore: RestoreRecord) -> Restore:
    """A restore as its customer sees it."""
    failure = None
    if restore.error_code is not None:
        failure = RestoreFailure(
            code=restore.error_code, message=restore.error_message or "", hint=restore.error_hint
        )  # fmt: skip
    return Restore(
        id=restore.id,
        state=restore.state,
        database_id=restore.database_id,
        branch_id=restore.target_id if restore.is_branch else None,
        at=restore.point,
        step=restore.step,
        done_bytes=restore.done_bytes,
        total_bytes=restore.total_bytes,
        seconds_left=restore.seconds_left,
        replaced_id=None if restore.is_branch or restore.state is not RestoreState.DONE else restore.replaced_id,
        missing_transactions=restore.missing_transactions,
        error=failure,
        created_at=restore.created_at,
        started_at=restore.started_at,
        ended_at=restore.ended_at,
    )
