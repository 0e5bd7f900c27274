"""POST /v1/query and POST /query: run one statement and return its result.

The request models are in `query_body.py`. The answer is assembled as bytes, because the rows arrive as bytes.
"""

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.data_plane.query import Queries, QueryRequest
from plainsql_server.data_plane.transaction import TransactionRequest, TransactionStatement
from plainsql_server.engine.encoding.shapes import Encoding
from plainsql_server.http.app.stream_formats import StreamFormat
from plainsql_server.http.data.idempotency import IDEMPOTENCY_KEY, IdempotencyRoutes
from plainsql_server.http.data.query_body import QUERY_BODY, QueryOptions
from plainsql_server.http.data.streams import StreamedAnswers, wanted_format
from plainsql_server.http.server.requests import Request, decode_json, require_content_type, text_of
from plainsql_server.http.server.responses import Response
from plainsql_server.limits.tiers import TIERS

ENCODINGS = {
    (rows, numbers): Encoding(rows == "array", numbers == "string")
    for rows in ("object", "array")
    for numbers in ("number", "string")
}


class QueryRoutes:
    """The handlers of the two query routes."""

    def __init__(self, queries: Queries, idempotency: IdempotencyRoutes, streamed: StreamedAnswers) -> None:
        self._queries = queries
        self._idempotency = idempotency
        self._streamed = streamed

    async def post_json(self, request: Request, principal: Principal) -> Response:
        body = body_at_hand(request, principal, b"application/json")
        if body is None:
            body = await read_body(request, principal, b"application/json")
        sent = decode_json(body, QUERY_BODY)
        query = _query_request(request, sent.sql, sent)
        query.params = [bytes(raw).strip() for raw in sent.params]
        query.read_only = sent.read_only
        if sent.database is not None:
            query.database = sent.database
        return await self._answer(request, principal, query, body)

    async def post_text(self, request: Request, principal: Principal) -> Response:
        body = await read_body(request, principal, b"text/plain")
        query = _query_request(request, text_of(body), request.options(QueryOptions))
        return await self._answer(request, principal, query, body)

    async def _answer(self, request: Request, principal: Principal, query: QueryRequest, body: bytes) -> Response:
        stream_format = wanted_format(request, query)
        if IDEMPOTENCY_KEY in request.headers:
            return await self._answer_once(request, principal, query, body, stream_format)
        if stream_format is not None:
            return await self._streamed.answer(request, principal, query, stream_format)
        return _render(await self._queries.run(principal, query), request)

    async def _answer_once(
        self,
        request: Request,
        principal: Principal,
        query: QueryRequest,
        body: bytes,
        stream_format: StreamFormat | None,
    ) -> Response:
        if stream_format is not None:
            raise RequestError(
                "idempotent_stream",
                "A request with an Idempotency-Key can't be streamed.",
                hint="Remove the Idempotency-Key header, or remove the STREAM hint and the Accept header.",
            )
        return await self._idempotency.run(
            request, principal, _as_transaction(query), body, lambda transaction: _body(transaction.results[0], request)
        )


async def read_body(request: Request, principal: Principal, content_type: bytes) -> bytes:
    """The body, within the size limit. Raises RequestError if its content type is wrong."""
    body = body_at_hand(request, principal, content_type)
    return await request.body(TIERS[principal.tier].request_bytes, principal.tier) if body is None else body


def body_at_hand(request: Request, principal: Principal, content_type: bytes) -> bytes | None:
    """The body if it arrived with the head, as most do; None if you must await `read_body`. Raises like `read_body`."""
    if request.headers.get(b"content-type") != content_type:
        require_content_type(request, content_type.decode())
    return request.body_at_hand(TIERS[principal.tier].request_bytes, principal.tier)


def _query_request(request: Request, sql: str, options: QueryOptions) -> QueryRequest:
    query = QueryRequest(sql)
    query.database = request.header(b"x-database")
    query.encoding = ENCODINGS[options.row_format, options.big_numbers]
    query.max_rows = options.max_rows
    query.timeout_ms = options.timeout_ms
    return query


def _as_transaction(query: QueryRequest) -> TransactionRequest:
    """The statement as a transaction, which can include the idempotency record."""
    return TransactionRequest(
        [TransactionStatement(query.sql, query.params)],
        query.database,
        query.encoding,
        query.read_only,
        query.max_rows,
        timeout_ms=query.timeout_ms,
    )


def _render(result: Result, request: Request) -> Response:
    completion = result.completion
    return Response(
        200,
        _body(result, request),
        queue_us=result.queue_us,
        exec_us=completion.exec_us,
        command=completion.command,
        row_count=len(result.rows),
    )


def _body(result: Result, request: Request) -> bytes:
    completion = result.completion
    total_us = monotonic_us() - request.started_us
    return b'{"success":true,%b,"rows":[%b],"row_count":%d,"truncated":%b,"affected_rows":%d,"command":"%b",' % (
        result.shape.json, b",".join(result.rows), len(result.rows), b"true" if result.truncated else b"false",
        completion.affected_rows, completion.command.encode(),
    ) + b'"timings":{"total_us":%d,"exec_us":%d},"request_id":"%b"}' % (
        total_us, completion.exec_us, request.id.encode(),
    )  # fmt: skip
