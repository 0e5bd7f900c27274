"""GET /storage/test: a round trip to the storage.

Owns the answer's shape, which is the same where the round trip fails, beside the error.
"""

from typing import Any, Literal

import msgspec

from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.storage import SIZE_BYTES, RoundTrip, StorageTests
from plainsql_server.http.errors import error_response
from plainsql_server.http.requests import Request
from plainsql_server.http.responses import Response, json_response


class StorageStep(msgspec.Struct, kw_only=True):
    """One step. Those that were not reached are left out."""

    name: Literal["write", "sync", "read", "verify", "delete"]
    ok: bool
    us: int


class StorageAnswer(msgspec.Struct, kw_only=True):
    """The answer of GET /storage/test."""

    success: Literal[True]
    steps: list[StorageStep]
    bytes: int
    checksum: str
    request_id: str


class StorageRoutes:
    """The handler of the route."""

    def __init__(self, tests: StorageTests) -> None:
        self._tests = tests

    async def get(self, request: Request, principal: Principal) -> Response:
        trip = await self._tests.run(principal, request.header(b"x-database"))
        done = {"steps": trip.steps, "bytes": SIZE_BYTES, "checksum": trip.checksum}
        response = _response(request, trip, done)
        response.exec_us, response.queue_us = trip.exec_us, trip.queue_us
        return response


def _response(request: Request, trip: RoundTrip, done: dict[str, Any]) -> Response:
    if trip.failure is not None:
        return error_response(trip.failure, request.id, beside=done)
    return json_response(200, {"success": True, **done, "request_id": request.id})
