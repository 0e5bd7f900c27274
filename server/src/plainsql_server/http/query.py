"""POST /v1/query and POST /query: one statement in, its result out.

Owns the two request shapes and the one answer shape. The answer is put together as bytes, because the
rows arrive as bytes.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.data_plane.query import Queries, QueryRequest
from plainsql_server.data_plane.transaction import TransactionRequest, TransactionStatement
from plainsql_server.engine.shapes import Encoding
from plainsql_server.http.answers import Count, QueryTimings, RequestId, Success
from plainsql_server.http.forms import Form
from plainsql_server.http.idempotency import IDEMPOTENCY_KEY, IdempotencyRoutes
from plainsql_server.http.requests import Request, decode_json, require_content_type, text_of
from plainsql_server.http.responses import Response
from plainsql_server.http.streams import StreamedAnswers, wanted_form
from plainsql_server.limits.tiers import TIERS

MaxRows = Annotated[int, Meta(ge=0)]
TimeoutMs = Annotated[int, Meta(ge=1)]
Rows = Annotated[Literal["object", "array"], Meta(description="Each row as an object by column name, or as an array.")]
Numbers = Annotated[Literal["number", "string"], Meta(description="How `int8` and `numeric` are written.")]
ReadOnly = Annotated[bool, Meta(description="Run in a read-only transaction, whatever the key may do.")]
Sql = Annotated[str, Meta(description="One statement.")]
Params = Annotated[list[msgspec.Raw], Meta(description="Values for `$1`, `$2`, …")]
DatabaseWanted = Annotated[str | None, Meta(description="Name of the database; wins over `X-Database`.")]
RowsWanted = Annotated[MaxRows | None, Meta(description="Rows to return at most; the tier's limit stays.")]
Timeout = Annotated[TimeoutMs | None, Meta(description="When to cancel; the tier's limit stays the longest.")]


class QueryOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both routes take beside the statement."""

    row_format: Rows = "object"
    big_numbers: Numbers = "number"
    max_rows: RowsWanted = None
    timeout_ms: Timeout = None


class QueryBody(QueryOptions, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of POST /v1/query."""

    # Parameters stay raw, so that numbers keep their digits.
    sql: Sql
    params: Params = []
    database: DatabaseWanted = None
    read_only: ReadOnly = False


class ResultAnswer(msgspec.Struct, kw_only=True):
    """What one statement gave back."""

    columns: Annotated[list[str], Meta(description="Names, in order; also when there are no rows.")]
    types: Annotated[list[str], Meta(description="PostgreSQL's type names, parallel to `columns`.")]
    rows: Annotated[list[dict[str, Any] | list[Any]], Meta(description="Objects, or arrays.")]
    row_count: Annotated[Count, Meta(description="How many rows are in `rows`.")]
    truncated: Annotated[bool, Meta(description="Whether there were more rows than `max_rows` or the tier allows.")]
    affected_rows: Annotated[Count, Meta(description="Rows changed by INSERT, UPDATE, DELETE or MERGE.")]
    command: Annotated[str, Meta(description="What PostgreSQL calls it.")]


class QueryAnswer(ResultAnswer, kw_only=True):
    """The answer to a query."""

    # It is put together as bytes, in `_body`; this describes it, and tests compare the two.
    success: Success = True
    timings: QueryTimings
    request_id: RequestId


ENCODINGS = {
    (rows, numbers): Encoding(rows == "array", numbers == "string")
    for rows in ("object", "array")
    for numbers in ("number", "string")
}
_decoder = msgspec.json.Decoder(QueryBody)


class QueryRoutes:
    """The handlers of the two query routes."""

    def __init__(self, queries: Queries, idempotency: IdempotencyRoutes, streamed: StreamedAnswers) -> None:
        self._queries = queries
        self._idempotency = idempotency
        self._streamed = streamed

    async def post_json(self, request: Request, principal: Principal) -> Response:
        body = await read_body(request, principal, b"application/json")
        sent = decode_json(body, _decoder)
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
        form = wanted_form(request, query)
        if IDEMPOTENCY_KEY in request.headers:
            return await self._answer_once(request, principal, query, body, form)
        if form is not None:
            return await self._streamed.answer(request, principal, query, form)
        return _render(await self._queries.run(principal, query), request)

    async def _answer_once(
        self, request: Request, principal: Principal, query: QueryRequest, body: bytes, form: Form | None
    ) -> Response:
        if form is not None:
            raise RequestError(
                "idempotent_stream",
                "A request with an Idempotency-Key is answered whole, not as a stream.",
                hint="Leave out the key, or the streaming hint and the Accept header.",
            )
        return await self._idempotency.run(
            request, principal, _as_transaction(query), body, lambda transaction: _body(transaction.results[0], request)
        )


async def read_body(request: Request, principal: Principal, content_type: bytes) -> bytes:
    """The bounded body. Raises RequestError where it is of another type than the route takes."""
    if request.headers.get(b"content-type") != content_type:
        require_content_type(request, content_type.decode())
    return await request.body(TIERS[principal.tier].request_bytes, principal.tier)


def _query_request(request: Request, sql: str, options: QueryOptions) -> QueryRequest:
    return QueryRequest(
        sql,
        database=request.header(b"x-database"),
        encoding=ENCODINGS[options.row_format, options.big_numbers],
        max_rows=options.max_rows,
        timeout_ms=options.timeout_ms,
    )


def _as_transaction(query: QueryRequest) -> TransactionRequest:
    """The same statement as a transaction of its own, which its record can be a part of."""
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
