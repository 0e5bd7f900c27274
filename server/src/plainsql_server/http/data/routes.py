"""The data plane's routes for queries, transactions and idempotency, each with its scope and contract."""

from plainsql_server.core.principal import Scope
from plainsql_server.http.app.contract import Contract, Media, Parameter
from plainsql_server.http.app.fields import DATABASE_NAME_PATTERN
from plainsql_server.http.app.routes import Route, scoped_route
from plainsql_server.http.data.idempotency import IdempotencyRoutes, RequestAnswer
from plainsql_server.http.data.neon import NeonRoutes, SqlAnswer, SqlBatchAnswer, SqlBody
from plainsql_server.http.data.neon_connection import read_neon_secret
from plainsql_server.http.data.neon_failures import SqlFailures
from plainsql_server.http.data.query import QueryRoutes
from plainsql_server.http.data.query_body import QueryAnswer, QueryBody, QueryOptions
from plainsql_server.http.data.transaction import TransactionAnswer, TransactionBody, TransactionRoutes

DATABASE = Parameter(
    "X-Database",
    "Name or id of the database. Default: the organization's default database.",
    {"type": "string", "pattern": DATABASE_NAME_PATTERN},
    "main",
)
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "Makes retries safe: the request takes effect once, however often you send it with this key.",
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
    "4b8b1c1e-6f5e-4d0b-9d3c-0f8d2c5f9f4e",
)
_STREAMS = (
    Media(
        "text/event-stream",
        "Server-sent events: one `columns` (StreamColumns), `row` for each row, then `done` (StreamDone) or `error`"
        " (StreamError).",
    ),
    Media("application/x-ndjson", "One JSON value per line: StreamColumns, the rows, then LastLine or Failure."),
    Media("text/csv", "A header line, then one line per row. If the stream fails, the connection is closed early."),
)
_DATABASE_ERRORS = ("database_not_found", "database_suspended", "database_not_ready")
ENGINE_ERRORS = (*_DATABASE_ERRORS, "engine_unavailable", "connection_lost", "overloaded")
_SQL_ERRORS = (
    *ENGINE_ERRORS, "statement_too_large", "empty_statement", "multiple_statements", "transaction_control",
    "listen_not_supported", "copy_not_supported", "wrong_parameter_count", "too_many_parameters", "invalid_parameter",
    "null_character", "query_canceled", "untranslatable_character", "statement_timeout",
    "transaction_deadline_exceeded", "result_too_large", "invalid_idempotency_key", "idempotency_unavailable",
    "request_in_progress", "idempotency_key_reused",
)  # fmt: skip
_QUERY_ERRORS = (*_SQL_ERRORS, "idempotent_stream")
_TRANSACTION_ERRORS = (
    *_SQL_ERRORS, "empty_transaction", "stream_in_transaction", "too_many_statements", "too_many_databases",
    "invalid_reference", "reference_failed", "expectation_failed", "commit_delayed", "too_many_participants",
)  # fmt: skip

_QUERY = Contract(
    body=QueryBody,
    examples={
        "One row": {"sql": "select now() as at, version()"},
        "With parameters": {"sql": "select $1::int + $2::int as sum", "params": [1, 2]},
        "A stream": {"sql": "/*+ STREAM */ select n from generate_series(1, 5) n"},
    },
    headers=(DATABASE, _IDEMPOTENCY_KEY),
    answers={200: QueryAnswer},
    streams=_STREAMS,
    errors=_QUERY_ERRORS,
    runs_sql=True,
)
_TEXT_QUERY = Contract(
    body=Media("text/plain", "One SQL statement, in UTF-8."),
    examples={"One row": "select now() as at"},
    options=QueryOptions,
    headers=(DATABASE, _IDEMPOTENCY_KEY),
    answers={200: QueryAnswer},
    streams=_STREAMS,
    errors=_QUERY_ERRORS,
    runs_sql=True,
)
_TRANSACTION = Contract(
    body=TransactionBody,
    examples={
        "Two statements": {"statements": ["create table if not exists notes (id int)", "select count(*) from notes"]},
        "An expectation": {"statements": [{"sql": "select 7 as seven", "expect": {"row_count": 1}}]},
    },
    headers=(DATABASE, _IDEMPOTENCY_KEY),
    answers={200: TransactionAnswer},
    errors=_TRANSACTION_ERRORS,
    runs_sql=True,
)
_TEXT = {"type": "string"}
_NEON_HEADERS = (
    Parameter(
        "Neon-Connection-String",
        "A connection string. Its password is the key or session token, if there is no Authorization header, and its"
        " path the database.",
        {"type": "string", "pattern": "^postgres(ql)?://"},
        "postgresql://app:svc_k_…@api.example.com/main",
    ),
    Parameter("Neon-Raw-Text-Output", "`true`: each value is a string with PostgreSQL's text.", _TEXT, "true"),
    Parameter("Neon-Array-Mode", "`true`: rows are arrays.", _TEXT, "true"),
    Parameter(
        "Neon-Batch-Isolation-Level",
        "For batches: `Serializable`, `RepeatableRead`, `ReadCommitted` or `ReadUncommitted`. It has no effect: every"
        " transaction is serializable.",
        _TEXT,
        "Serializable",
    ),
    Parameter("Neon-Batch-Read-Only", "`true`: the batch is a read-only transaction.", _TEXT, "true"),
    Parameter("Neon-Batch-Deferrable", "Accepted for batches, and without effect.", _TEXT, "true"),
)
_NEON = Contract(
    body=SqlBody,
    ignores_content_type=True,
    examples={
        "One statement": {"query": "select $1::int + $2::int as sum", "params": ["1", "2"]},
        "A batch": {"queries": [{"query": "select 1 as one"}, {"query": "select 2 as two"}]},
    },
    headers=(*_NEON_HEADERS, DATABASE, _IDEMPOTENCY_KEY),
    answers={200: SqlAnswer},
    other_answer=SqlBatchAnswer,
    failures=SqlFailures(),
    errors=(*_SQL_ERRORS, "stream_in_transaction", "too_many_statements"),
    runs_sql=True,
)
_REQUEST = Contract(
    path=Parameter(
        "key", "An idempotency key, or the id of a request that was sent with one.",
        {"type": "string", "minLength": 1}, "4b8b1c1e-6f5e-4d0b-9d3c-0f8d2c5f9f4e",
        has_slashes=True,
    ),
    headers=(DATABASE,),
    answers={200: RequestAnswer},
    errors=(*ENGINE_ERRORS, "request_not_found", "statement_timeout"),
)  # fmt: skip


def data_routes(
    queries: QueryRoutes, transactions: TransactionRoutes, neon: NeonRoutes, idempotency: IdempotencyRoutes
) -> list[Route]:
    """The routes for queries, transactions and idempotency."""
    return [
        scoped_route(
            "POST", "/v1/query", Scope.READ, "Run one SQL statement, sent as JSON",
            queries.post_json, contract=_QUERY, answers_queries=True,
        ),
        scoped_route(
            "POST", "/query", Scope.READ, "Run one SQL statement, sent as plain text",
            queries.post_text, contract=_TEXT_QUERY, answers_queries=True,
        ),
        scoped_route(
            "POST", "/v1/transaction", Scope.READ, "Run several SQL statements as one transaction",
            transactions.post, contract=_TRANSACTION,
        ),
        scoped_route(
            "POST", "/sql", Scope.READ, "Run SQL for drivers that speak the Neon driver's protocol",
            neon.post, contract=_NEON, read_secret=read_neon_secret,
        ),
        scoped_route(
            "GET", "/v1/requests/{key}", Scope.READ, "Look up the outcome of a request with an idempotency key",
            idempotency.get, contract=_REQUEST,
        ),
    ]  # fmt: skip
