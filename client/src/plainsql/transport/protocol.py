"""The protocol: which requests a call sends, and how it reads the responses.

This module makes writes run exactly once. A write carries an Idempotency-Key, so it can be repeated after a lost
response and still runs only once. A statement that looks like a read is sent read-only and can be repeated freely. If
PostgreSQL reports that it writes, it is sent again as a write, and remembered as one. A statement that cannot run in a
transaction, such as VACUUM, is sent once; if its response is lost, the outcome is "unknown" (see `retry.py`).

Calls are generators that ask a driver to send and to wait, so the blocking and the asyncio client share all of this
code. Nothing here touches a socket.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from plainsql.errors import NetworkError, ResultError, ServiceError, SettingsError
from plainsql.result import Result, TransactionResult
from plainsql.settings import Settings, check_exposure, parse_url
from plainsql.statements import looks_like_a_read
from plainsql.transport.retry import answer_of, exchange, not_executed
from plainsql.transport.wire import AddressBook, Lost, NotSent, Request, Response, Send, Steps
from plainsql.values import EncodedParams, decode_json, encode_json

DEFAULT_TIMEOUT_S = 60.0
# The maximum of any tier. The service reduces it to the tier's limit.
STREAM_LIFE_S = 3600.0

# How many statements to remember that look like reads but write.
_REMEMBERED_WRITES = 256
_JSON = ("Content-Type", "application/json")


class StreamFormat(Enum):
    """The format of a stream's rows."""

    ARRAYS = "arrays"
    OBJECTS = "objects"
    CSV = "csv"


class Options(NamedTuple):
    """The options of one call. None means the client's or the service's default.

    With `as_sent`, values stay as the service wrote them.
    """

    database: str | None = None
    timeout_s: float | None = None
    max_rows: int | None = None
    read_only: bool | None = None
    idempotency_key: str | None = None
    as_sent: bool = False


class Core:
    """A client's side of the protocol, without its sockets.

    It calls `notice` if the service does not answer, or if a call waits for a rate limit. Without `notice`, it logs
    that.
    """

    def __init__(
        self, settings: Settings, timeout_s: float = DEFAULT_TIMEOUT_S, rate_limit_wait_s: float | None = None
    ) -> None:
        self.settings = settings
        self.timeout_s = timeout_s
        self.rate_limit_wait_s = rate_limit_wait_s
        self.addresses = AddressBook(settings.address, settings.control)
        self.notice: Callable[[str], None] | None = None
        self._writes: OrderedDict[str, None] = OrderedDict()

    def query(self, sql: str, params: Sequence[Any], options: Options) -> Steps[Result]:
        """One statement, with all rows of its result."""
        try:
            answer, response = yield from self._statement(sql, params, options)
        except ServiceError as error:
            error.sql = sql
            # There is only one.
            error.statement_index = None
            raise
        replayed = "idempotency-replayed" in response.headers
        result = Result(answer, replayed=replayed, read_only=response.read_only, as_sent=options.as_sent)
        if result.truncated and options.max_rows is None:
            done = "" if result.read_only else "The statement was executed. "
            raise ResultError(
                f"{done}The result exceeds your tier's limit of {len(result)} rows: use stream(), or pass max_rows to "
                "truncate it.",
                outcome=None if result.read_only else "committed",
            )
        return result

    def _statement(self, sql: str, params: Sequence[Any], options: Options) -> Steps[tuple[Any, Response]]:
        read_only = options.read_only
        may_read = read_only is None and options.idempotency_key is None and looks_like_a_read(sql)
        if may_read and sql not in self._writes:
            try:
                return (yield from self._post_query(sql, params, options, read_only=True, key=None))
            except ServiceError as error:
                if error.code != "read_only_sql_transaction":
                    raise
                self._remember_write(sql)
        key = None if read_only else options.idempotency_key or _new_key()
        try:
            return (yield from self._post_query(sql, params, options, read_only=bool(read_only), key=key))
        except ServiceError as error:
            # VACUUM and the like cannot run in a transaction, and a key needs one. Nothing was executed.
            if error.code != "active_sql_transaction" or options.idempotency_key or key is None:
                raise
        return (yield from self._post_query(sql, params, options, read_only=False, key=None))

    def _remember_write(self, sql: str) -> None:
        self._writes[sql] = None
        if len(self._writes) > _REMEMBERED_WRITES:
            self._writes.popitem(last=False)

    def _post_query(
        self, sql: str, params: Sequence[Any], options: Options, *, read_only: bool, key: str | None
    ) -> Steps[tuple[Any, Response]]:
        body = self.query_body(sql, params, options, read_only=read_only)
        request = Request("POST", "/v1/query", _headers(key), body)
        response = yield from self._exchange(request, options, safe=read_only or key is not None)
        response.read_only = read_only
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            raise ResultError("The statement requests a stream with /*+ STREAM */: use stream(), or remove the hint.")
        return answer_of(response), response

    def query_body(
        self, sql: str, params: Sequence[Any], options: Options, *, read_only: bool, row_format: str = "array"
    ) -> bytes:
        """The body of POST /v1/query."""
        content: dict[str, Any] = {"sql": sql, "row_format": row_format, **self._common(options)}
        if params:
            from plainsql.parameters import encode_params  # noqa: PLC0415  # slow to import

            content["params"] = encode_params(params)
        if read_only:
            content["read_only"] = True
        return encode_json(content).encode()

    def stream(
        self, sql: str, params: Sequence[Any], options: Options, stream_format: StreamFormat = StreamFormat.ARRAYS
    ) -> Steps[Response]:
        """Opens a stream. A read is retried until its first bytes arrive; a write is sent once."""
        read_only = options.read_only
        if read_only is None and looks_like_a_read(sql) and sql not in self._writes:
            try:
                return (yield from self._open_stream(sql, params, options, stream_format, read_only=True))
            except ServiceError as error:
                if error.code != "read_only_sql_transaction":
                    raise
                self._remember_write(sql)
        return (yield from self._open_stream(sql, params, options, stream_format, read_only=bool(read_only)))

    def _open_stream(
        self, sql: str, params: Sequence[Any], options: Options, stream_format: StreamFormat, *, read_only: bool
    ) -> Steps[Response]:
        row_format = "array" if stream_format is StreamFormat.ARRAYS else "object"
        body = self.query_body(sql, params, options, read_only=read_only, row_format=row_format)
        accept = "text/csv" if stream_format is StreamFormat.CSV else "application/x-ndjson"
        request = Request("POST", "/v1/query", (_JSON, ("Accept", accept)), body)
        response = yield from self._exchange(request, options, safe=read_only, as_stream=True)
        response.read_only = read_only
        if response.source is None:
            try:
                answer_of(response)
            except ServiceError as error:
                error.sql = sql
                raise
            raise NetworkError("The response isn't a stream.", outcome="unknown")
        return response

    def transaction(
        self,
        statements: Sequence[Mapping[str, Any]],
        options: Options,
        max_retries: int | None,
        nows: Sequence[str] = (),
    ) -> Steps[TransactionResult]:
        """Runs all statements, or none of them. `nows` are the transaction times of earlier rehearsals."""
        content = self._transaction(statements, options, max_retries, nows)
        key = None if options.read_only else options.idempotency_key or _new_key()
        body = _transaction_json(content).encode()
        request = Request("POST", "/v1/transaction", _headers(key), body)
        try:
            response = yield from self._exchange(request, options, safe=True)
            answer = answer_of(response)
        except ServiceError as error:
            if error.statement_index is not None and error.statement_index < len(statements):
                error.sql = statements[error.statement_index]["sql"]
            raise
        replayed = "idempotency-replayed" in response.headers
        return TransactionResult(answer, replayed=replayed, as_sent=options.as_sent)

    def rehearsal(
        self,
        statements: Sequence[Mapping[str, Any]],
        options: Options,
        max_retries: int | None,
        nows: Sequence[str],
    ) -> Steps[dict[str, Any]]:
        """Runs all statements and rolls them back. Returns the response as it is."""
        content = {"dry_run": True, **self._transaction(statements, options, max_retries, nows)}
        body = encode_json(content).encode()
        response = yield from self._exchange(
            Request("POST", "/v1/transaction", _headers(None), body), options, safe=True
        )
        return dict(answer_of(response))

    def _transaction(
        self,
        statements: Sequence[Mapping[str, Any]],
        options: Options,
        max_retries: int | None,
        nows: Sequence[str],
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"statements": statements, "row_format": "array", **self._common(options)}
        if nows:
            content["nows"] = nows
        if options.read_only:
            content["read_only"] = True
        if max_retries is not None:
            content["max_retries"] = max_retries
        return content

    def request_outcome(self, key: str, options: Options) -> Steps[str]:
        """The outcome of the request with this idempotency key."""
        from urllib.parse import quote  # noqa: PLC0415  # slow to import

        answer = yield from self.get(f"/v1/requests/{quote(key, safe='')}", options)
        return str(answer["request"]["outcome"])

    def tables(self, schema: str | None, detail: str, options: Options) -> Steps[list[dict[str, Any]]]:
        """The database's tables."""
        answer = yield from self.get(_target("/tables", detail=detail, schema=schema), options)
        return list(answer["tables"])

    def bench(self, iterations: int | None, concurrency: int | None, options: Options) -> Steps[dict[str, Any]]:
        """The result of the service's built-in benchmark."""
        return dict((yield from self.get(_target("/bench", iterations=iterations, concurrency=concurrency), options)))

    def reset(self, database: str) -> Steps[dict[str, int]]:
        """Empties a database. Not sent again after a lost response: it could drop what was made since."""
        body = json.dumps({"database": database, "confirm": database}).encode()
        options = Options(timeout_s=STREAM_LIFE_S)
        response = yield from self._exchange(Request("POST", "/admin/reset", (_JSON,), body), options, safe=False)
        return dict(answer_of(response)["dropped"])

    def get(self, target: str, options: Options = Options()) -> Steps[Any]:  # noqa: B008  # immutable
        """The response to a GET on the data plane."""
        database = options.database or self.settings.database
        if database and not (database.isascii() and database.isprintable()):
            raise ValueError(f"Invalid database name: {database!r}.")
        headers = (("X-Database", database),) if database else ()
        response = yield from self._exchange(Request("GET", target, headers), options, safe=True)
        return answer_of(response)

    def health(self) -> Steps[dict[str, Any]]:
        """The response of GET /health. Sent once; a response that reports a failure is not an error here."""
        try:
            response = yield Send(Request("GET", "/health"), self.timeout_s)
        except (NotSent, Lost) as error:
            raise not_executed(error) from error
        answer = decode_json(response.body)
        if not isinstance(answer, dict) or "status" not in answer:
            answer_of(response)
        return dict(answer)

    def control(self, method: str, target: str, content: Any, *, repeatable: bool) -> Steps[Any]:
        """The control plane's response. After a lost response, only repeatable calls are sent again."""
        yield from self.find_control()
        body = b"" if content is None else json.dumps(content).encode()
        request = Request(method, target, (_JSON,) if body else (), body, to_control=True)
        response = yield from self._exchange(request, Options(), safe=repeatable)
        return answer_of(response) if response.body else None

    def find_control(self) -> Steps[None]:
        """Gets the control plane's URL from the data plane, once."""
        if self.addresses.control is not None:
            return
        banner = yield from self.get("/")
        if not banner.get("control_url"):
            raise SettingsError("The service doesn't advertise its control plane. Pass control_url=….")
        control = parse_url(banner["control_url"])
        if control.scheme != "https" and self.settings.address.scheme == "https":
            raise SettingsError(f"The control plane at {control.url} doesn't use TLS, so the key wasn't sent.")
        check_exposure(control, insecure=self.settings.insecure)
        self.addresses.control = control

    def _common(self, options: Options) -> dict[str, Any]:
        content: dict[str, Any] = {"timeout_ms": max(1, round(self._timeout(options) * 1000))}
        if database := options.database or self.settings.database:
            content["database"] = database
        if options.max_rows is not None:
            content["max_rows"] = options.max_rows
        return content

    def _timeout(self, options: Options) -> float:
        return self.timeout_s if options.timeout_s is None else options.timeout_s

    def _exchange(self, request: Request, options: Options, *, safe: bool, as_stream: bool = False) -> Steps[Response]:
        wait_s = self.rate_limit_wait_s
        timeout_s = self._timeout(options)
        return exchange(
            request, timeout_s, safe=safe, as_stream=as_stream, notice=self.notice, rate_limit_wait_s=wait_s
        )


def _new_key() -> str:
    # Equivalent to `secrets.token_hex`, but without its slow imports.
    return os.urandom(16).hex()


def _transaction_json(content: dict[str, Any]) -> str:
    """The body of a transaction. Parameters that are encoded already are not encoded again."""
    if not any(isinstance(each.get("params"), EncodedParams) for each in content["statements"]):
        return encode_json(content)
    statements = ", ".join(map(_statement_json, content["statements"]))
    others = encode_json({name: value for name, value in content.items() if name != "statements"})
    return f'{{"statements": [{statements}], {others[1:]}'


def _statement_json(statement: Mapping[str, Any]) -> str:
    params = statement.get("params")
    if not isinstance(params, EncodedParams):
        return encode_json(statement)
    others = encode_json({name: value for name, value in statement.items() if name != "params"})
    return f'{others[:-1]}, "params": [{params.text}]}}'


def _headers(key: str | None) -> tuple[tuple[str, str], ...]:
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("An idempotency key must have 1 to 255 visible ASCII characters.")
    return (_JSON,) if key is None else (_JSON, ("Idempotency-Key", key))


def _target(path: str, **asked: Any) -> str:
    from urllib.parse import urlencode  # noqa: PLC0415  # slow to import

    return f"{path}?{urlencode({name: value for name, value in asked.items() if value is not None})}"
