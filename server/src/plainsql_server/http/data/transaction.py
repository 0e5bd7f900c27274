"""POST /v1/transaction: runs several statements as one transaction.

The answer is assembled as bytes, because the rows arrive as bytes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from plainsql_server.core.batches import in_batches
from plainsql_server.core.clock import monotonic_us
from plainsql_server.core.errors import RequestError
from plainsql_server.core.principal import Principal
from plainsql_server.core.result import NO_COLUMNS, Result
from plainsql_server.data_plane.retry import MAX_RETRIES
from plainsql_server.data_plane.transaction import (
    TransactionResult,
    Transactions,
)
from plainsql_server.data_plane.transaction_request import TransactionRequest, TransactionStatement
from plainsql_server.engine.execution.plan import Count as Counted
from plainsql_server.engine.execution.plan import Expectation, ExpectedDigest
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
from plainsql_server.http.server.answers import (
    Count,
    Microseconds,
    OmittedNotices,
    QueryTimings,
    RequestId,
    ShownNotices,
    Success,
    notices_json,
)
from plainsql_server.http.server.long_body import LONG_BODY_BYTES, Body, JoinedRows, body_of
from plainsql_server.http.server.requests import Request, decode_json
from plainsql_server.http.server.responses import Response

ExpectedCount = Annotated[int, Meta(ge=0)]


_DIGEST = "[0-9a-f]{32}"
_TIME = r"[0-9]{4,6}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
# `statements_of` checks these patterns, in batches: the decoder takes milliseconds for thousands of them.
Digest = Annotated[str, Meta(extra_json_schema={"pattern": f"^{_DIGEST}$"})]
# As in answers: in UTC, with microseconds.
Time = Annotated[str, Meta(extra_json_schema={"pattern": f"^{_TIME}$"})]
_is_digest = re.compile(_DIGEST).fullmatch
_is_time = re.compile(_TIME).fullmatch
# The most dry runs that one request may name.
MAX_NOWS = 4_000
# Parameters and rows that take as long as a statement without any.
_PARAMETERS = 16
_ROWS = 64
# Rows that are not joined before they are sent, if the answer is long.
_LONG_ROWS_BYTES = 16 * 1024
_BEFORE = b'{"success":true,"results":['


# Without `gc`: there may be thousands of these in a body, which the garbage collector would visit while it is decoded.
class ExpectBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a statement's result must be. Set exactly one of the fields."""

    affected_rows: Annotated[ExpectedCount | None, Meta(description="Number of rows it must change.")] = None
    row_count: Annotated[ExpectedCount | None, Meta(description="Number of rows it must return.")] = None
    digest: Annotated[Digest | None, Meta(description="The `digest` it must have: the same rows, in order.")] = None
    multiset_digest: Annotated[
        Digest | None, Meta(description="The `multiset_digest` it must have: the same rows in any order.")
    ] = None

    def expectation(self) -> Expectation | ExpectedDigest:
        """Raises RequestError unless exactly one field is set, and valid."""
        # Not in `__post_init__`: the decoder would call it for thousands of statements without a pause.
        digests = (self.digest is None) + (self.multiset_digest is None)
        if digests + (self.affected_rows is None) + (self.row_count is None) != 3:
            raise _invalid("`expect` needs exactly one of affected_rows, row_count, digest and multiset_digest")
        if self.affected_rows is not None:
            return Expectation(Counted.AFFECTED, self.affected_rows)
        if self.row_count is not None:
            return Expectation(Counted.ROWS, self.row_count)
        digest = self.digest or self.multiset_digest or ""
        if not _is_digest(digest):
            raise _invalid("a digest has 32 hexadecimal digits, in lower case")
        return ExpectedDigest(digest, is_ordered=self.digest is not None)


class StatementBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
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
    digest: Annotated[bool, Meta(description="Return digests of the result.")] = False
    rows: Annotated[bool, Meta(description="Whether to return rows. If not, there are no `columns` either.")] = True
    freeze: Annotated[
        bool, Meta(description="In a dry run, for an INSERT: return a statement that inserts the same rows later.")
    ] = False

    def statement(self) -> TransactionStatement:
        return TransactionStatement(
            self.sql,
            [bytes(raw).strip() for raw in self.params],
            None if self.expect is None else self.expect.expectation(),
            self.database,
            self.digest,
            self.rows,
            self.freeze,
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
    dry_run: Annotated[bool, Meta(description="Run everything, then roll it back.")] = False
    check_deferred: Annotated[bool, Meta(description="In a dry run, check deferred constraints at the end.")] = False
    nows: Annotated[
        list[Time],
        Meta(
            max_length=MAX_NOWS,
            description="`transaction.now` of earlier dry runs: digests treat these times like that of this one.",
        ),
    ] = []

    def __post_init__(self) -> None:
        if not self.dry_run and any(not isinstance(each, str) and each.freeze for each in self.statements):
            raise ValueError("freeze needs dry_run")
        if not self.dry_run and self.check_deferred:
            raise ValueError("check_deferred needs dry_run")


class ExecutionTime(msgspec.Struct, kw_only=True):
    """How long one statement took, in microseconds."""

    exec_us: Annotated[Microseconds, Meta(description="Time spent in PostgreSQL.")]


class FrozenStatement(msgspec.Struct, kw_only=True):
    """A statement to send instead of an INSERT, so that generated values stay the same."""

    sql: Annotated[str, Meta(description="The statement.")]
    params: Annotated[list[Any], Meta(description="Its parameters. The last one is the rows, as PostgreSQL's text.")]
    mergeable: Annotated[
        bool, Meta(description="Whether rows of several such statements may be inserted at once: no trigger sees it.")
    ]


class StatementResult(ResultAnswer, kw_only=True, omit_defaults=True):
    """The result of one statement of a transaction."""

    digest: Annotated[Digest | None, Meta(description="Digest of the columns and all rows, in their order.")] = None
    multiset_digest: Annotated[
        Digest | None, Meta(description="Digest of the columns and all rows, whatever their order.")
    ] = None

    frozen: Annotated[
        FrozenStatement | None,
        Meta(description="If you set `freeze`: what to send at commit. Null if it can't be frozen."),
    ] = None
    frozen_reason: Annotated[str | None, Meta(description="If `frozen` is null: a code that says why.")] = None
    timings: ExecutionTime


class TransactionInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the transaction ran."""

    id: Annotated[str, Meta(description="Identifier of the transaction.")]
    isolation: Annotated[Literal["serializable"], Meta(description="Always serializable.")]
    attempts: Annotated[int, Meta(ge=1, description="Number of attempts: 1 if no retry was needed.")]
    participants: Annotated[int, Meta(ge=1, description="Number of databases that took part.")]
    dry_run: Annotated[bool, Meta(description="True if everything was rolled back, as you asked.")] = False
    now: Annotated[
        Time | None, Meta(description="PostgreSQL's `now()` in it. Present in dry runs, and if there are digests.")
    ] = None


class TransactionTimings(QueryTimings, kw_only=True):
    """How long the transaction took, in microseconds."""

    commit_us: Annotated[Microseconds, Meta(description="The part of it spent on the commit.")]


class TransactionAnswer(msgspec.Struct, kw_only=True):
    """The response to a transaction."""

    # `_body` assembles the answer as bytes. This model describes it, and tests compare the two.
    success: Success = True
    results: Annotated[list[StatementResult], Meta(description="One result per statement.")]
    affected_rows: Annotated[Count, Meta(description="Number of rows changed by all statements.")]
    notices: ShownNotices = msgspec.UNSET
    notices_omitted: OmittedNotices = msgspec.UNSET
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
        sent = decode_json(request.body, TRANSACTION_BODY)
        statements = await statements_of(sent)
        wanted = _transaction_request(request, sent, statements)
        # A dry run has no effect that could happen twice.
        if IDEMPOTENCY_KEY in request.headers and not wanted.dry_run:
            return await self._idempotency.run(
                request,
                principal,
                wanted,
                lambda transaction: _body(transaction, _results(transaction.results), request),
            )
        transaction = await self._transactions.run(principal, wanted, request.head_start, request.began_s)
        if sum([result.size_bytes for result in transaction.results]) > LONG_BODY_BYTES:
            return transaction_response(transaction, await _long_body(transaction, request))
        results = b",".join([_results(batch) async for batch in in_batches(transaction.results, _rendering_cost)])
        return transaction_response(transaction, _body(transaction, results, request))


async def statements_of(sent: TransactionBody) -> list[TransactionStatement]:
    """The statements of a body. Raises RequestError if one of them, or a time, is invalid."""
    async for nows in in_batches(sent.nows, lambda _: 1):
        _check_nows(nows)
    statements: list[TransactionStatement] = []
    async for batch in in_batches(sent.statements, _cost):
        statements += _statements(batch, len(statements))
    return statements


def _check_nows(nows: Sequence[str]) -> None:
    if not all(map(_is_time, nows)):
        raise _invalid("nows must be times like 2026-11-17T09:46:06.123456Z")


def _invalid(reason: str) -> RequestError:
    return RequestError("malformed_request", f"The JSON body is invalid: {reason}.")


def _cost(sent: str | StatementBody) -> int:
    return 1 if isinstance(sent, str) else 1 + len(sent.params) // _PARAMETERS


def _rendering_cost(result: Result) -> int:
    return 1 + len(result.rows) // _ROWS


def _statements(sent: Sequence[str | StatementBody], first: int) -> Iterator[TransactionStatement]:
    for index, each in enumerate(sent, first):
        try:
            yield TransactionStatement(each) if isinstance(each, str) else each.statement()
        except RequestError as error:
            error.statement_index = index
            raise


def _transaction_request(
    request: Request, sent: TransactionBody, statements: Sequence[TransactionStatement]
) -> TransactionRequest:
    return TransactionRequest(
        statements,
        request.header(b"x-database") if sent.database is None else sent.database,
        ENCODINGS[sent.row_format, sent.big_numbers],
        sent.read_only,
        sent.max_rows,
        sent.max_retries,
        sent.timeout_ms,
        sent.dry_run,
        sent.check_deferred,
        sent.nows,
    )


def _results(results: Sequence[Result]) -> bytes:
    return b",".join([_result(result) for result in results])


def _body(transaction: TransactionResult, results: bytes, request: Request) -> bytes:
    return b"".join((_BEFORE, results, _after(transaction, request)))


async def _long_body(transaction: TransactionResult, request: Request) -> Body:
    segments: list[bytes | JoinedRows] = []
    async for batch in in_batches(transaction.results, _rendering_cost):
        for result in batch:
            segments.append(b"," if segments else _BEFORE)
            if result.size_bytes > _LONG_ROWS_BYTES:
                segments += (_before_rows(result), JoinedRows(result.rows, result.size_bytes), _after_rows(result))
            else:
                segments.append(_result(result))
    segments.append(_after(transaction, request))
    return body_of(segments)


def _after(transaction: TransactionResult, request: Request) -> bytes:
    total_us = monotonic_us() - request.started_us
    return (
        b'],"affected_rows":%d%b,"transaction":{"id":"%b","isolation":"serializable",'
        b'"attempts":%d,"participants":%d%b},"timings":{"total_us":%d,"exec_us":%d,"commit_us":%d},"request_id":"%b"}'
    ) % (
        transaction.affected_rows,
        notices_json(transaction.notices),
        transaction.id.encode(),
        transaction.attempts,
        transaction.participants,
        _rehearsed(transaction),
        total_us,
        transaction.exec_us,
        transaction.commit_us,
        request.id.encode(),
    )


def _rehearsed(transaction: TransactionResult) -> bytes:
    dry_run = b',"dry_run":true' if transaction.dry_run else b""
    return dry_run if transaction.now is None else b'%b,"now":"%b"' % (dry_run, transaction.now.encode())


def _result(result: Result) -> bytes:
    return b"".join((_before_rows(result), b",".join(result.rows), _after_rows(result)))


def _before_rows(result: Result) -> bytes:
    return b'{%b,"rows":[' % (result.shape if result.shows_columns else NO_COLUMNS).json


def _after_rows(result: Result) -> bytes:
    completion = result.completion
    return b'],"row_count":%d,"truncated":%b,"affected_rows":%d,"command":"%b"%b,"timings":{"exec_us":%d}}' % (
        result.row_count,
        b"true" if result.truncated else b"false",
        completion.affected_rows,
        completion.command.encode(),
        notices_json(completion.notices) + _digests(result) + _frozen(result),
        completion.exec_us,
    )


def _digests(result: Result) -> bytes:
    if result.digests is None or not result.shows_digests:
        return b""
    return b',"digest":"%b","multiset_digest":"%b"' % (
        result.digests.ordered.encode(), result.digests.multiset.encode()
    )  # fmt: skip


def _frozen(result: Result) -> bytes:
    if result.frozen is None:
        return b""
    if isinstance(result.frozen, str):
        return b',"frozen":null,"frozen_reason":"%b"' % result.frozen.encode()
    sql, rows, mergeable, _, before = result.frozen
    params = [*map(msgspec.Raw, before), rows]
    return b',"frozen":' + msgspec.json.encode(FrozenStatement(sql=sql, params=params, mergeable=mergeable))
