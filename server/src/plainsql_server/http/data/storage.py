"""GET /storage/test: tests a round trip to the storage.

A failed round trip has the same answer fields, plus the error.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics.storage import SIZE_BYTES, RoundTrip, RoundTripStep, StorageTests
from plainsql_server.http.server.answers import Count, Error, Microseconds, RequestId, Success
from plainsql_server.http.server.errors import error_object, error_response
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response


class StorageStep(msgspec.Struct, kw_only=True):
    """One step of the round trip. Steps that were not reached are omitted."""

    name: Annotated[Literal["write", "sync", "read", "verify", "delete"], Meta(description="The name of the step.")]
    ok: Annotated[bool, Meta(description="Whether it succeeded.")]
    us: Annotated[Microseconds, Meta(description="How long it took, in microseconds.")]


Steps = Annotated[list[StorageStep], Meta(description="The steps, in the order in which they ran.")]
SizeBytes = Annotated[Count, Meta(description="Number of bytes written.")]
Checksum = Annotated[str, Meta(description="Checksum of the data written.", pattern="^sha256:[0-9a-f]{64}$")]


class StorageAnswer(msgspec.Struct, kw_only=True):
    """A successful round trip."""

    success: Success = True
    steps: Steps
    bytes: SizeBytes
    checksum: Checksum
    request_id: RequestId


class StorageFailure(msgspec.Struct, kw_only=True):
    """A failed round trip, and how far it got."""

    success: Annotated[bool, Meta(description="Always false.", extra_json_schema={"const": False})] = False
    error: Error
    steps: Steps
    bytes: SizeBytes
    checksum: Checksum
    request_id: RequestId


class StorageRoutes:
    """The handler of GET /storage/test."""

    def __init__(self, tests: StorageTests) -> None:
        self._tests = tests

    async def get(self, request: Request, principal: Principal) -> Response:
        trip = await self._tests.run(principal, request.header(b"x-database"))
        response = _response(request, trip, [_step(step) for step in trip.steps])
        response.exec_us, response.queue_us = trip.exec_us, trip.queue_us
        return response


def _response(request: Request, trip: RoundTrip, steps: list[StorageStep]) -> Response:
    if trip.failure is None:
        answer = StorageAnswer(steps=steps, bytes=SIZE_BYTES, checksum=trip.checksum, request_id=request.id)
        return json_response(200, answer)
    response = error_response(trip.failure, request.id)
    error = error_object(trip.failure)
    response.body = msgspec.json.encode(
        StorageFailure(error=error, steps=steps, bytes=SIZE_BYTES, checksum=trip.checksum, request_id=request.id)
    )
    return response


def _step(step: RoundTripStep) -> StorageStep:
    return StorageStep(name=step.name, ok=step.ok, us=step.us)
