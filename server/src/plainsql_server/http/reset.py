"""POST /admin/reset: empties a database.

Owns the request's shape: nothing is dropped unless the database is named, and named again.
"""

from typing import Literal

import msgspec

from plainsql_server.core.actor import Actor
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.reset import Resets
from plainsql_server.http.query import read_body
from plainsql_server.http.requests import Request, decode_json
from plainsql_server.http.responses import Response


class ResetBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /admin/reset."""

    confirm: str
    database: str | None = None


class DroppedObjects(msgspec.Struct, kw_only=True):
    """How many objects of each kind there were."""

    tables: int
    views: int
    materialized_views: int
    sequences: int
    functions: int
    types: int
    schemas: int
    large_objects: int
    others: int


class ResetAnswer(msgspec.Struct, kw_only=True):
    """The answer of POST /admin/reset."""

    success: Literal[True]
    database: str
    dropped: DroppedObjects
    request_id: str


_decoder = msgspec.json.Decoder(ResetBody)


class ResetRoutes:
    """The handler of the route."""

    def __init__(self, resets: Resets) -> None:
        self._resets = resets

    async def post(self, request: Request, principal: Principal) -> Response:
        body = decode_json(await read_body(request, principal, b"application/json"), _decoder)
        database = request.header(b"x-database") if body.database is None else body.database
        emptied = await self._resets.run(principal, database, body.confirm, Actor.of(principal, request.id))
        answer = ResetAnswer(
            success=True, database=body.confirm, dropped=DroppedObjects(**emptied.dropped), request_id=request.id
        )
        return Response(200, msgspec.json.encode(answer), exec_us=emptied.exec_us, command="RESET")
