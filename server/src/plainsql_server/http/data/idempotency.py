"""The Idempotency-Key header, and GET /v1/requests/{key}, which looks up the outcome of a request.

Two requests are the same if their path, query string and body are equal.
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
from plainsql_server.data_plane.transaction import TransactionResult
from plainsql_server.data_plane.transaction_request import TransactionRequest
from plainsql_server.http.server.answers import RequestId, Success
from plainsql_server.http.server.long_body import Body
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response

IDEMPOTENCY_KEY = b"idempotency-key"
_VALID_KEY = re.compile(rb"[\x21-\x7e]{1,255}\Z")


class RequestState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The outcome of a request."""

    id: Annotated[str, Meta(description="The request id or idempotency key you asked about.")]
    outcome: Annotated[RequestOutcome, Meta(description="Whether the request took effect.")]
    finished_at: Annotated[
        Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None,
        Meta(description="When it was committed. Omitted if it was not."),
    ] = None


class RequestAnswer(msgspec.Struct, kw_only=True):
    """The outcome of the request."""

    success: Success = True
    request: RequestState
    request_id: RequestId


class IdempotencyRoutes:
    """Runs requests with an idempotency key, and handles GET /v1/requests/{key}."""

    def __init__(self, idempotency: Idempotency) -> None:
        self._idempotency = idempotency

    async def run(
        self,
        request: Request,
        principal: Principal,
        wanted: TransactionRequest,
        render: Callable[[TransactionResult], bytes],
        *,
        options: bytes = b"",
    ) -> Response:
        """Runs a request once and returns its response, or the stored response of an earlier request.

        `options` is what else must be equal for two requests to be the same.
        """
        keyed = KeyedRequest(_key(request), request.id, _hash(request, options), render)
        recorded = await self._idempotency.run(principal, wanted, keyed)
        response = transaction_response(recorded.transaction, recorded.body)
        if recorded.replayed:
            response.headers.append((b"idempotency-replayed", b"true"))
        return response

    async def get(self, request: Request, principal: Principal) -> Response:
        """GET /v1/requests/{request id or idempotency key}."""
        wanted = request.path_parameter
        if not _VALID_KEY.match(wanted.encode()):
            raise AccessError("request_not_found", "That isn't a valid request id or idempotency key.")
        is_key = not is_request_id(wanted.encode())
        status = await self._idempotency.find(principal, request.header(b"x-database"), wanted, is_key=is_key)
        state = RequestState(id=wanted, outcome=status.outcome, finished_at=status.finished_at)
        return json_response(200, RequestAnswer(request=state, request_id=request.id))


def transaction_response(transaction: TransactionResult, body: Body) -> Response:
    """The response to a transaction, with its data for the log."""
    return Response(
        200,
        body,
        queue_us=transaction.queue_us,
        exec_us=transaction.exec_us,
        command="TRANSACTION",
        row_count=sum(len(result.rows) for result in transaction.results),
    )


def _key(request: Request) -> str:
    """The idempotency key of a request. Raises RequestError if it is invalid."""
    sent = request.headers[IDEMPOTENCY_KEY]
    if not _VALID_KEY.match(sent):
        raise RequestError(
            "invalid_idempotency_key", "The Idempotency-Key must be 1 to 255 visible ASCII characters.",
            hint="Use a new UUID for each request.",
        )  # fmt: skip
    return sent.decode()


def _hash(request: Request, options: bytes) -> bytes:
    """A hash of everything that determines what a request does. The database is implied by where the record is."""
    hashed = hashlib.sha256(b"\0".join((request.path.encode(), request.query_string, request.body)))
    if options:
        hashed.update(b"\0" + options)
    return hashed.digest()
