"""POST /v1/query and POST /query: run one statement and return its result.

The request models are in `query_body.py`. The answer is assembled as bytes, because the rows arrive as bytes.
"""

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import EngineNotice, Notices, Result
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.query import Queries
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement
from plainsql_server.engine.encoding.shapes import Encoding
from plainsql_server.http.app.stream_formats import StreamFormat
from plainsql_server.http.data.idempotency import IDEMPOTENCY_KEY, IdempotencyRoutes
from plainsql_server.http.data.query_body import QUERY_BODY, QueryOptions
from plainsql_server.http.data.streams import StreamedAnswers, wanted_format
from plainsql_server.http.server.answers import notices_json
from plainsql_server.http.server.long_body import LONG_BODY_BYTES, Body, JoinedRows, body_of
from plainsql_server.http.server.requests import Request, decode_json, text_of
from plainsql_server.http.server.responses import Response

ENCODINGS = {
    (rows, numbers): Encoding(rows == "array", numbers == "string")
    for rows in ("object", "array")
    for numbers in ("number", "string")
}

# PostgreSQL's code for a warning of no particular kind.
_SET_ALONE = EngineNotice(
    "WARNING",
    "01000",
    "SET has no effect on other requests: the setting ends with this one",
    None,
    "Send SET and the statements that need it together, as one transaction.",
)


class QueryRoutes:
    """The handlers of the two query routes."""

    def __init__(self, queries: Queries, idempotency: IdempotencyRoutes, streamed: StreamedAnswers) -> None:
        self._queries = queries
        self._idempotency = idempotency
        self._streamed = streamed

    async def post_json(self, request: Request, principal: Principal) -> Response:
        sent = decode_json(request.body, QUERY_BODY)
        job = _job(request, sent.sql, sent)
        job.params = [bytes(raw).strip() for raw in sent.params]
        job.read_only = sent.read_only
        if sent.database is not None:
            job.database = sent.database
        return await self._answer(request, principal, job)

    async def post_text(self, request: Request, principal: Principal) -> Response:
        job = _job(request, text_of(request.body), request.options(QueryOptions))
        return await self._answer(request, principal, job)

    async def _answer(self, request: Request, principal: Principal, job: StatementJob) -> Response:
        stream_format = wanted_format(request, job)
        if IDEMPOTENCY_KEY in request.headers:
            return await self._answer_once(request, principal, job, stream_format)
        if stream_format is not None:
            return await self._streamed.answer(request, principal, job, stream_format)
        return _render(await self._queries.run(principal, job), request)

    async def _answer_once(
        self, request: Request, principal: Principal, job: StatementJob, stream_format: StreamFormat | None
    ) -> Response:
        if stream_format is not None:
            raise RequestError(
                "idempotent_stream",
                "A request with an Idempotency-Key can't be streamed.",
                hint="Remove the Idempotency-Key header, or remove the STREAM hint and the Accept header.",
            )
        return await self._idempotency.run(
            request, principal, _as_transaction(job), lambda transaction: _body(transaction.results[0], request)
        )


def _job(request: Request, sql: str, options: QueryOptions) -> StatementJob:
    job = StatementJob(sql)
    job.database = request.header(b"x-database")
    job.encoding = ENCODINGS[options.row_format, options.big_numbers]
    job.wanted_rows = options.max_rows
    job.wanted_timeout_ms = options.timeout_ms
    job.go_on(request.head_start, request.began_s)
    return job


def _as_transaction(job: StatementJob) -> TransactionRequest:
    """The statement as a transaction, which can include the idempotency record."""
    return TransactionRequest(
        [TransactionStatement(job.sql, job.params)],
        job.database,
        job.encoding,
        job.read_only,
        job.wanted_rows,
        timeout_ms=job.wanted_timeout_ms,
    )


def _render(result: Result, request: Request) -> Response:
    completion = result.completion
    return Response(
        200,
        _body(result, request) if result.size_bytes <= LONG_BODY_BYTES else _long_body(result, request),
        queue_us=result.queue_us,
        exec_us=completion.exec_us,
        command=completion.command,
        row_count=len(result.rows),
    )


def _with_notice(notices: Notices | None, notice: EngineNotice) -> Notices:
    return Notices((notice,), 0) if notices is None else notices._replace(shown=(*notices.shown, notice))


def _body(result: Result, request: Request) -> bytes:
    return b"".join((_before(result), b",".join(result.rows), _after(result, request)))


def _long_body(result: Result, request: Request) -> Body:
    return body_of([_before(result), JoinedRows(result.rows, result.size_bytes), _after(result, request)])


def _before(result: Result) -> bytes:
    return b'{"success":true,%b,"rows":[' % result.shape.json


def _after(result: Result, request: Request) -> bytes:
    completion = result.completion
    if completion.command == "SET":
        completion.notices = _with_notice(completion.notices, _SET_ALONE)
    total_us = monotonic_us() - request.started_us
    return (
        b'],"row_count":%d,"truncated":%b,"affected_rows":%d,"command":"%b"%b,'
        b'"timings":{"total_us":%d,"exec_us":%d},"request_id":"%b"}'
    ) % (
        len(result.rows), b"true" if result.truncated else b"false", completion.affected_rows,
        completion.command.encode(), notices_json(completion.notices), total_us, completion.exec_us,
        request.id.encode(),
    )  # fmt: skip
