"""The Idempotency-Key header, and GET /v1/requests/{key}: was it done?

Owns the header, what counts as the same request, and the answer to the question.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from plainsql_server.core.errors import AccessError, RequestError
from plainsql_server.core.ids import is_request_id
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.idempotency import Idempotency, KeyedRequest, RequestOutcome
from plainsql_server.data_plane.transaction import TransactionRequest, TransactionResult
from plainsql_server.http.server.answers import RequestId, Success
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response

PATH_PREFIX = "/v1/requests/"
IDEMPOTENCY_KEY = b"idempotency-key"
_VALID_KEY = re.compile(rb"[\x21-\x7e]{1,255}\Z")


class RequestState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a request."""

    id: Annotated[str, Meta(description="The request id or idempotency key that you asked for.")]
    outcome: Annotated[RequestOutcome, Meta(description="Whether it was done.")]
    finished_at: Annotated[
        Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="When it was done; left out where it was not."),
    ] = None


class RequestAnswer(msgspec.Struct, kw_only=True):
    """What became of a request."""

    success: Success = True
    request: RequestState
    request_id: RequestId


class IdempotencyRoutes:
    """What the routes do with a key."""

    def __init__(self, idempotency: Idempotency) -> None:
        self._idempotency = idempotency

    async def run(
        self,
        request: Request,
        principal: Principal,
        wanted: TransactionRequest,
        body: bytes,
        render: Callable[[TransactionResult], bytes],
    ) -> Response:
        """The response to a request that is to be done once."""
        keyed = KeyedRequest(_key(request), request.id, _hash(request, body), render)
        recorded = await self._idempotency.run(principal, wanted, keyed)
        response = transaction_response(recorded.transaction, recorded.body)
        if recorded.replayed:
            response.headers.append((b"idempotency-replayed", b"true"))
        return response

    async def get(self, request: Request, principal: Principal) -> Response:
        """GET /v1/requests/{request id or idempotency key}."""
        wanted = request.path.removeprefix(PATH_PREFIX)
        if not _VALID_KEY.match(wanted.encode()):
            raise AccessError("request_not_found", "No request has such an id or key.")
        is_key = not is_request_id(wanted.encode())
        status = await self._idempotency.find(principal, request.header(b"x-database"), wanted, is_key=is_key)
        told = RequestState(id=wanted, outcome=status.outcome, finished_at=status.finished_at)
        return json_response(200, RequestAnswer(request=told, request_id=request.id))


def transaction_response(transaction: TransactionResult, body: bytes) -> Response:
    """The response to a transaction, with what the log says about it."""
    return Response(
        200,
        body,
        queue_us=transaction.queue_us,
        exec_us=transaction.exec_us,
        command="TRANSACTION",
        row_count=sum(len(result.rows) for result in transaction.results),
    )


def _key(request: Request) -> str:
    """The key that the caller gave the request. Raises RequestError for one that cannot be."""
    sent = request.headers[IDEMPOTENCY_KEY]
    if not _VALID_KEY.match(sent):
        raise RequestError(
            "invalid_idempotency_key", "An Idempotency-Key has 1 to 255 visible ASCII characters.",
            hint="Use a fresh UUID for each request.",
        )  # fmt: skip
    return sent.decode()


def _hash(request: Request, body: bytes) -> bytes:
    """What tells two requests apart: all that decides what is done. The database is where the record is."""
    return hashlib.sha256(b"\0".join((request.path.encode(), request.query_string, body))).digest()
