"""POST /admin/reset: empties a database.

Owns the request's shape: nothing is dropped unless the database is named, and named again.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.actor import Actor
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.reset import Resets
from plainsql_server.http.app.fields import DatabaseName
from plainsql_server.http.data.query import read_body
from plainsql_server.http.server.answers import Count, RequestId, Success
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Response, json_response


class ResetBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/reset."""

    confirm: Annotated[str, Meta(description="The name of the database, once more.")]
    database: Annotated[DatabaseName | None, Meta(description="Which database; wins over X-Database.")] = None


class DroppedObjects(msgspec.Struct, kw_only=True):
    """How many objects of each kind there were."""

    tables: Annotated[Count, Meta(description="Partitions included.")]
    views: Count
    materialized_views: Count
    sequences: Count
    functions: Annotated[Count, Meta(description="Procedures and aggregates included.")]
    types: Count
    schemas: Count
    large_objects: Count
    others: Annotated[Count, Meta(description="Extensions, publications, operators and the like.")]


class ResetAnswer(msgspec.Struct, kw_only=True):
    """The database is empty."""

    success: Success = True
    database: Annotated[str, Meta(description="Its name.")]
    dropped: DroppedObjects
    request_id: RequestId


_decoder = msgspec.json.Decoder(ResetBody)


class ResetRoutes:
    """The handler of the route."""

    def __init__(self, resets: Resets) -> None:
        self._resets = resets

    async def post(self, request: Request, principal: Principal) -> Response:
        body = decode_json(await read_body(request, principal, b"application/json"), _decoder)
        database = request.header(b"x-database") if body.database is None else body.database
        emptied = await self._resets.run(principal, database, body.confirm, Actor.of(principal, request.id))
        dropped = DroppedObjects(**emptied.dropped)
        response = json_response(200, ResetAnswer(database=body.confirm, dropped=dropped, request_id=request.id))
        response.exec_us, response.command = emptied.exec_us, "RESET"
        return response
