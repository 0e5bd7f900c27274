"""POST /sql: the protocol of the Neon serverless driver, so that it and what is built on it work without a change.

A request has one statement, or several that run as one transaction. Everything but the form of the request and of the
answer is as in `query.py` and `transaction.py`. The connection string is read in `neon_connection.py`, and failures are
written in `neon_failures.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from plainsql_server.core.batches import in_batches
from plainsql_server.core.errors import LimitError, Outcome, RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import NO_COLUMNS, Result
from plainsql_server.data_plane.job import StatementJob
from plainsql_server.data_plane.query import Queries
from plainsql_server.data_plane.transaction import TransactionResult, Transactions
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement
from plainsql_server.engine.encoding.parameters import text_parameter
from plainsql_server.engine.encoding.shapes import Encoding, FieldDescription
from plainsql_server.http.data.idempotency import IDEMPOTENCY_KEY, IdempotencyRoutes, transaction_response
from plainsql_server.http.data.query_body import Sql
from plainsql_server.http.server.long_body import LONG_BODY_BYTES, Body, JoinedRows, body_of
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Header, Response
from plainsql_server.limits.tiers import TIERS

_RAW_TEXT = b"neon-raw-text-output"
_ARRAY_MODE = b"neon-array-mode"
_ISOLATION_LEVEL = b"neon-batch-isolation-level"
_READ_ONLY = b"neon-batch-read-only"
_DEFERRABLE = b"neon-batch-deferrable"
_BATCH_HEADERS = (_ISOLATION_LEVEL, _READ_ONLY, _DEFERRABLE)
# What the answer depends on, beside the body.
_OPTIONS = (_RAW_TEXT, _ARRAY_MODE, *_BATCH_HEADERS)
_ISOLATION_LEVELS = frozenset([b"Serializable", b"RepeatableRead", b"ReadCommitted", b"ReadUncommitted"])
# By the values of Neon-Raw-Text-Output and Neon-Array-Mode.
ENCODINGS = {
    (raw_text, arrays): Encoding(rows_as_arrays=arrays, style="text" if raw_text else "neon")
    for raw_text in (False, True)
    for arrays in (False, True)
}
NO_FIELDS = b'"fields":[]'
_BEFORE_RESULTS, _AFTER_RESULTS = b'{"results":[', b"]}"
# Parameters and rows that take as long as a statement without any.
_PARAMETERS = 16
_ROWS = 64


class SqlStatement(msgspec.Struct, kw_only=True, rename="camel"):
    """A statement of a batch."""

    query: Sql
    # Parameters stay raw JSON, so numbers keep all their digits.
    params: Annotated[
        list[msgspec.Raw],
        Meta(description="Values for `$1`, `$2`, …, in PostgreSQL's text format. Arrays and objects may be JSON."),
    ] = []
    array_mode: Annotated[bool | None, Meta(description="Overrides `Neon-Array-Mode`.")] = None

    @property
    def parameters(self) -> list[bytes]:
        return [text_parameter(bytes(raw).strip(), number) for number, raw in enumerate(self.params, 1)]


class SqlBody(msgspec.Struct, kw_only=True, rename="camel"):
    """The JSON body of POST /sql: one statement (`query`), or several as one transaction (`queries`)."""

    query: Annotated[str | None, Meta(description="One SQL statement.")] = None
    params: Annotated[list[msgspec.Raw], Meta(description="As in a statement of a batch.")] = []
    array_mode: Annotated[bool | None, Meta(description="Overrides `Neon-Array-Mode`.")] = None
    queries: Annotated[list[SqlStatement] | None, Meta(description="The statements of a batch.")] = None


class SqlAnswer(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a statement."""

    # `_around_rows` assembles it as bytes. This model describes it, and tests compare the two.
    command: Annotated[str, Meta(description="The first word of the SQL command, such as SELECT.")]
    row_count: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Rows returned or changed; null for other commands.")
    ]
    rows: Annotated[list[dict[str, Any] | list[Any]], Meta(description="The rows, as objects or arrays.")]
    fields: Annotated[list[FieldDescription], Meta(description="The columns.")]
    row_as_array: Annotated[bool, Meta(description="Whether rows are arrays.")]


class SqlBatchAnswer(msgspec.Struct, kw_only=True):
    """The results of a batch."""

    results: Annotated[list[SqlAnswer], Meta(description="One result per statement.")]


SQL_BODY = msgspec.json.Decoder(SqlBody)


class NeonRoutes:
    """The handler of POST /sql."""

    def __init__(self, queries: Queries, transactions: Transactions, idempotency: IdempotencyRoutes) -> None:
        self._queries = queries
        self._transactions = transactions
        self._idempotency = idempotency

    async def post(self, request: Request, principal: Principal) -> Response:
        sent = decode_json(request.body, SQL_BODY)
        if sent.queries is not None:
            return await self._answer_batch(request, principal, sent.queries)
        if sent.query is None:
            raise RequestError("malformed_request", "The JSON body is invalid: `query` or `queries` is missing.")
        statement = SqlStatement(query=sent.query, params=sent.params, array_mode=sent.array_mode)
        return await self._answer_one(request, principal, statement)

    async def _answer_one(self, request: Request, principal: Principal, statement: SqlStatement) -> Response:
        job = StatementJob(statement.query, statement.parameters, _database(request))
        job.encoding = encoding = _encoding(request, statement)
        job.go_on(request.head_start, request.began_s)
        if IDEMPOTENCY_KEY in request.headers:
            wanted = TransactionRequest([TransactionStatement(job.sql, job.params)], job.database, encoding)
            return await self._answer_once(
                request, principal, wanted, lambda done: b"".join(_parts(done.results[0], encoding, principal))
            )
        result = await self._queries.run(principal, job)
        return Response(
            200,
            _body(result, encoding, principal),
            queue_us=result.queue_us,
            exec_us=result.completion.exec_us,
            command=result.completion.command,
            row_count=len(result.rows),
        )

    async def _answer_batch(self, request: Request, principal: Principal, sent: Sequence[SqlStatement]) -> Response:
        echoed = _batch_headers(request)
        if not sent:
            return Response(200, _BEFORE_RESULTS + _AFTER_RESULTS, echoed)
        statements = await _statements(request, sent)
        is_read_only = request.headers.get(_READ_ONLY) == b"true"
        wanted = TransactionRequest(statements, _database(request), read_only=is_read_only)
        if IDEMPOTENCY_KEY in request.headers:
            response = await self._answer_once(request, principal, wanted, lambda done: _batch(done, wanted, principal))
        else:
            transaction = await self._transactions.run(principal, wanted, began_s=request.began_s)
            response = transaction_response(transaction, await _batch_in_parts(transaction, wanted, principal))
        response.headers += echoed
        return response

    async def _answer_once(
        self,
        request: Request,
        principal: Principal,
        wanted: TransactionRequest,
        render: Callable[[TransactionResult], bytes],
    ) -> Response:
        sent = b"\0".join([request.headers.get(name, b"") for name in _OPTIONS])
        return await self._idempotency.run(request, principal, wanted, render, options=sent)


def _database(request: Request) -> str | None:
    return request.named_database or request.header(b"x-database")


def _encoding(request: Request, statement: SqlStatement) -> Encoding:
    raw_text, arrays = wanted_layout(request.headers)
    return ENCODINGS[raw_text, arrays if statement.array_mode is None else statement.array_mode]


def wanted_layout(headers: Mapping[bytes, bytes]) -> tuple[bool, bool]:
    """Whether values are PostgreSQL's text, and whether rows are arrays unless the body says otherwise."""
    return headers.get(_RAW_TEXT) == b"true", headers.get(_ARRAY_MODE) == b"true"


def _batch_headers(request: Request) -> list[Header]:
    """The headers of a batch, which the answer repeats. Raises RequestError if the isolation level is unknown."""
    level = request.headers.get(_ISOLATION_LEVEL)
    if level is not None and level not in _ISOLATION_LEVELS:
        raise RequestError(
            "malformed_request", "Neon-Batch-Isolation-Level isn't an isolation level.",
            hint="Leave it out: every transaction is serializable.",
        )  # fmt: skip
    return [(name, value) for name in _BATCH_HEADERS if (value := request.headers.get(name)) is not None]


async def _statements(request: Request, sent: Sequence[SqlStatement]) -> list[TransactionStatement]:
    statements: list[TransactionStatement] = []
    async for batch in in_batches(sent, lambda each: 1 + len(each.params) // _PARAMETERS):
        for each in batch:
            try:
                params = each.parameters
            except RequestError as error:
                error.statement_index = len(statements)
                raise
            statements.append(TransactionStatement(each.query, params, encoding=_encoding(request, each)))
    return statements


def _batch(transaction: TransactionResult, wanted: TransactionRequest, principal: Principal) -> bytes:
    results = [
        b"".join(_parts(result, statement.encoding or wanted.encoding, principal))
        for result, statement in zip(transaction.results, wanted.statements, strict=True)
    ]
    return _BEFORE_RESULTS + b",".join(results) + _AFTER_RESULTS


async def _batch_in_parts(transaction: TransactionResult, wanted: TransactionRequest, principal: Principal) -> Body:
    segments: list[bytes | JoinedRows] = []
    results = list(zip(transaction.results, wanted.statements, strict=True))
    async for batch in in_batches(results, lambda each: 1 + len(each[0].rows) // _ROWS):
        for result, statement in batch:
            segments.append(b"," if segments else _BEFORE_RESULTS)
            segments += _segments(result, statement.encoding or wanted.encoding, principal)
    return body_of([*segments, _AFTER_RESULTS])


def _body(result: Result, encoding: Encoding, principal: Principal) -> Body:
    if result.size_bytes <= LONG_BODY_BYTES:
        return b"".join(_parts(result, encoding, principal))
    return body_of(_segments(result, encoding, principal))


def _segments(result: Result, encoding: Encoding, principal: Principal) -> Sequence[bytes | JoinedRows]:
    before, after = _around_rows(result, encoding, principal)
    return before, JoinedRows(result.rows, result.size_bytes), after


def _parts(result: Result, encoding: Encoding, principal: Principal) -> Sequence[bytes]:
    before, after = _around_rows(result, encoding, principal)
    return before, b",".join(result.rows), after


def _around_rows(result: Result, encoding: Encoding, principal: Principal) -> tuple[bytes, bytes]:
    """What is before the rows of a result in its JSON, and after them. Raises LimitError if rows are missing."""
    if result.truncated:
        raise _too_many_rows(principal.tier)
    fields = result.shape.json if result.shape is not NO_COLUMNS else NO_FIELDS
    as_array = b"true" if encoding.rows_as_arrays else b"false"
    return before_rows(result.completion.tag), b'],%b,"rowAsArray":%b}' % (fields, as_array)


def before_rows(tag: bytes) -> bytes:
    """What is before the rows of a result with this command tag."""
    command, _, rest = tag.partition(b" ")
    count = rest.rpartition(b" ")[2]
    return b'{"command":"%b","rowCount":%b,"rows":[' % (command, count if count.isdigit() else b"null")


def _too_many_rows(tier: str) -> LimitError:
    # The driver's protocol has nothing that says that rows were left out.
    # The answer to a request with an idempotency key is written before the commit; this error then rolls the
    # transaction back, and gets that outcome, in `Attempt`.
    return LimitError(
        "result_too_large",
        f"The result has more than {TIERS[tier].result_rows} rows, the {tier} tier's limit.",
        hint="Select fewer rows, or stream the result with POST /v1/query.",
        outcome=Outcome.COMMITTED,
    )
