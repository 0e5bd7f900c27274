"""POST /v1/transaction: runs several statements as one transaction.

The answer is assembled as bytes, because the rows arrive as bytes.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import Result
from plainsql_server.data_plane.retry import MAX_RETRIES
from plainsql_server.data_plane.transaction import (
    TransactionRequest,
    TransactionResult,
    Transactions,
    TransactionStatement,
)
from plainsql_server.engine.execution.transaction import Count as Counted
from plainsql_server.engine.execution.transaction import Expectation
from plainsql_server.http.data.idempotency import IDEMPOTENCY_KEY, IdempotencyRoutes, transaction_response
from plainsql_server.http.data.query import ENCODINGS
from plainsql_server.http.data.query_body import (
    DatabaseWanted,
    Numbers,
    Params,
    ReadOnly,
    ResultAnswer,
    Rows,
    RowsWanted,
    Sql,
    Timeout,
)
from plainsql_server.http.server.answers import Count, Microseconds, QueryTimings, RequestId, Success
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Response

ExpectedCount = Annotated[int, Meta(ge=0)]


class ExpectBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a statement's result must be. Set exactly one of the two fields."""

    affected_rows: Annotated[ExpectedCount | None, Meta(description="Number of rows it must change.")] = None
    row_count: Annotated[ExpectedCount | None, Meta(description="Number of rows it must return.")] = None

    def __post_init__(self) -> None:
        if (self.affected_rows is None) == (self.row_count is None):
            raise ValueError("set exactly one of affected_rows and row_count")

    def expectation(self) -> Expectation:
        if self.affected_rows is not None:
            return Expectation(Counted.AFFECTED, self.affected_rows)
        assert self.row_count is not None
        return Expectation(Counted.ROWS, self.row_count)


class StatementBody(msgspec.Struct, forbid_unknown_fields=True):
    """A statement with its parameters and options."""

    # Parameters stay raw JSON, so numbers keep all their digits.
    sql: Sql
    params: Annotated[
        Params,
        Meta(description='Values for `$1`, `$2`, …, or references to earlier results: `{"$ref": "0.rows.0.id"}`.'),
    ] = []
    expect: Annotated[ExpectBody | None, Meta(description="Roll the transaction back unless the result matches.")] = (
        None
    )
    database: Annotated[str | None, Meta(description="The database to run it in, if not the transaction's.")] = None

    def statement(self) -> TransactionStatement:
        return TransactionStatement(
            self.sql,
            [bytes(raw).strip() for raw in self.params],
            None if self.expect is None else self.expect.expectation(),
            self.database,
        )


class TransactionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of POST /v1/transaction."""

    statements: Annotated[
        list[str | StatementBody],
        Meta(description="The statements, run in this order.", extra_json_schema={"minItems": 1}),
    ]
    database: DatabaseWanted = None
    read_only: ReadOnly = False
    max_rows: RowsWanted = None
    max_retries: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_RETRIES)] | None,
        Meta(description="How many times to retry after a serialization failure or deadlock."),
    ] = None
    timeout_ms: Timeout = None
    row_format: Rows = "object"
    big_numbers: Numbers = "number"


class ExecutionTime(msgspec.Struct, kw_only=True):
    """How long one statement took, in microseconds."""

    exec_us: Annotated[Microseconds, Meta(description="Time spent in PostgreSQL.")]


class StatementResult(ResultAnswer, kw_only=True):
    """The result of one statement of a transaction."""

    timings: ExecutionTime


class TransactionInfo(msgspec.Struct, kw_only=True):
    """How the transaction ran."""

    id: Annotated[str, Meta(description="Identifier of the transaction.")]
    isolation: Annotated[Literal["serializable"], Meta(description="Always serializable.")]
    attempts: Annotated[int, Meta(ge=1, description="Number of attempts: 1 if no retry was needed.")]
    participants: Annotated[int, Meta(ge=1, description="Number of databases that took part.")]


class TransactionTimings(QueryTimings, kw_only=True):
    """How long the transaction took, in microseconds."""

    commit_us: Annotated[Microseconds, Meta(description="The part of it spent on the commit.")]


class TransactionAnswer(msgspec.Struct, kw_only=True):
    """The response to a transaction."""

    # `_body` assembles the answer as bytes. This model describes it, and tests compare the two.
    success: Success = True
    results: Annotated[list[StatementResult], Meta(description="One result per statement.")]
    affected_rows: Annotated[Count, Meta(description="Number of rows changed by all statements.")]
    transaction: TransactionInfo
    timings: TransactionTimings
    request_id: RequestId


TRANSACTION_BODY = msgspec.json.Decoder(TransactionBody)


class TransactionRoutes:
    """The handler of the transaction route."""

    def __init__(self, transactions: Transactions, idempotency: IdempotencyRoutes) -> None:
        self._transactions = transactions
        self._idempotency = idempotency

    async def post(self, request: Request, principal: Principal) -> Response:
        wanted = _transaction_request(request, decode_json(request.body, TRANSACTION_BODY))
        if IDEMPOTENCY_KEY in request.headers:
            return await self._idempotency.run(
                request, principal, wanted, lambda transaction: _body(transaction, request)
            )
        transaction = await self._transactions.run(principal, wanted, request.head_start, request.began_s)
        return transaction_response(transaction, _body(transaction, request))


def _transaction_request(request: Request, sent: TransactionBody) -> TransactionRequest:
    return TransactionRequest(
        [TransactionStatement(each) if isinstance(each, str) else each.statement() for each in sent.statements],
        request.header(b"x-database") if sent.database is None else sent.database,
        ENCODINGS[sent.row_format, sent.big_numbers],
        sent.read_only,
        sent.max_rows,
        sent.max_retries,
        sent.timeout_ms,
    )


def _body(transaction: TransactionResult, request: Request) -> bytes:
    total_us = monotonic_us() - request.started_us
    return (
        b'{"success":true,"results":[%b],"affected_rows":%d,"transaction":{"id":"%b","isolation":"serializable",'
        b'"attempts":%d,"participants":%d},"timings":{"total_us":%d,"exec_us":%d,"commit_us":%d},"request_id":"%b"}'
    ) % (
        b",".join([_result(result) for result in transaction.results]),
        transaction.affected_rows,
        transaction.id.encode(),
        transaction.attempts,
        transaction.participants,
        total_us,
        transaction.exec_us,
        transaction.commit_us,
        request.id.encode(),
    )


def _result(result: Result) -> bytes:
    completion = result.completion
    return (
        b'{%b,"rows":[%b],"row_count":%d,"truncated":%b,"affected_rows":%d,"command":"%b","timings":{"exec_us":%d}}'
    ) % (
        result.shape.json,
        b",".join(result.rows),
        len(result.rows),
        b"true" if result.truncated else b"false",
        completion.affected_rows,
        completion.command.encode(),
        completion.exec_us,
    )
