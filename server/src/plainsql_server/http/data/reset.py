"""POST /admin/reset: deletes everything in a database.

Nothing is dropped unless the request repeats the name of the database in `confirm`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.actor import Actor
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.reset import Resets
from plainsql_server.http.app.fields import DatabaseName
from plainsql_server.http.server.answers import Count, RequestId, Success
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Response, json_response


class ResetBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/reset."""

    confirm: Annotated[str, Meta(description="The name of the database, to confirm the reset.")]
    database: Annotated[DatabaseName | None, Meta(description="Name of the database. Overrides `X-Database`.")] = None


class DroppedObjects(msgspec.Struct, kw_only=True):
    """The number of dropped objects of each kind."""

    tables: Annotated[Count, Meta(description="Including partitions.")]
    views: Count
    materialized_views: Count
    sequences: Count
    functions: Annotated[Count, Meta(description="Including procedures and aggregates.")]
    types: Count
    schemas: Count
    large_objects: Count
    others: Annotated[Count, Meta(description="Extensions, publications, operators and other objects.")]


class ResetAnswer(msgspec.Struct, kw_only=True):
    """The reset is complete, and the database is empty."""

    success: Success = True
    database: Annotated[str, Meta(description="The name of the database.")]
    dropped: DroppedObjects
    request_id: RequestId


_decoder = msgspec.json.Decoder(ResetBody)


class ResetRoutes:
    """The handler of POST /admin/reset."""

    def __init__(self, resets: Resets) -> None:
        self._resets = resets

    async def post(self, request: Request, principal: Principal) -> Response:
        body = decode_json(request.body, _decoder)
        database = request.header(b"x-database") if body.database is None else body.database
        emptied = await self._resets.run(principal, database, body.confirm, Actor.of(principal, request.id))
        dropped = DroppedObjects(**emptied.dropped)
        response = json_response(200, ResetAnswer(database=body.confirm, dropped=dropped, request_id=request.id))
        response.exec_us, response.command = emptied.exec_us, "RESET"
        return response
