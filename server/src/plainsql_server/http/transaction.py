"""POST /v1/transaction: several statements in, all of their results out, or none.

Owns the request's shape and the answer's, which is put together as bytes, because rows arrive as bytes.
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
from plainsql_server.engine.transaction import Count, Expectation
from plainsql_server.http.idempotency import IDEMPOTENCY_KEY, IdempotencyRoutes, transaction_response
from plainsql_server.http.query import ENCODINGS, read_body
from plainsql_server.http.query_body import MaxRows, TimeoutMs
from plainsql_server.http.requests import Request, decode_json
from plainsql_server.http.responses import Response

ExpectedCount = Annotated[int, Meta(ge=0)]


class ExpectBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a statement's result must have; exactly one of the two."""

    affected_rows: ExpectedCount | None = None
    row_count: ExpectedCount | None = None

    def __post_init__(self) -> None:
        if (self.affected_rows is None) == (self.row_count is None):
            raise ValueError("name one of affected_rows and row_count")

    def expectation(self) -> Expectation:
        if self.affected_rows is not None:
            return Expectation(Count.AFFECTED, self.affected_rows)
        assert self.row_count is not None
        return Expectation(Count.ROWS, self.row_count)


class StatementBody(msgspec.Struct, forbid_unknown_fields=True):
    """A statement with what belongs to it. Parameters stay raw, so that numbers keep their digits."""

    sql: str
    params: list[msgspec.Raw] = []
    expect: ExpectBody | None = None
    database: str | None = None

    def statement(self) -> TransactionStatement:
        return TransactionStatement(
            self.sql,
            [bytes(raw).strip() for raw in self.params],
            None if self.expect is None else self.expect.expectation(),
            self.database,
        )


class TransactionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of POST /v1/transaction."""

    statements: list[str | StatementBody]
    database: str | None = None
    read_only: bool = False
    max_rows: MaxRows | None = None
    max_retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] | None = None
    timeout_ms: TimeoutMs | None = None
    row_format: Literal["object", "array"] = "object"
    big_numbers: Literal["number", "string"] = "number"


_decoder = msgspec.json.Decoder(TransactionBody)


class TransactionRoutes:
    """The handler of the transaction route."""

    def __init__(self, transactions: Transactions, idempotency: IdempotencyRoutes) -> None:
        self._transactions = transactions
        self._idempotency = idempotency

    async def post(self, request: Request, principal: Principal) -> Response:
        body = await read_body(request, principal, b"application/json")
        wanted = _transaction_request(request, decode_json(body, _decoder))
        if IDEMPOTENCY_KEY in request.headers:
            return await self._idempotency.run(
                request, principal, wanted, body,
                lambda transaction: _body(transaction, request),
            )  # fmt: skip
        transaction = await self._transactions.run(principal, wanted)
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
        b'"attempts":%d,"participants":1},"timings":{"total_us":%d,"exec_us":%d,"commit_us":%d},"request_id":"%b"}'
    ) % (
        b",".join([_result(result) for result in transaction.results]),
        transaction.affected_rows,
        transaction.id.encode(),
        transaction.attempts,
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
