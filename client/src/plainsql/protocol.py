"""The conversation with the service: what is sent, what is sent again, and what the answers mean.

Owns exactly-once. A write carries an Idempotency-Key, so it may be sent again after a lost answer and is done once.
What looks like a read is sent read-only, which may be repeated freely; if PostgreSQL says that it writes, it is sent
as a write, and remembered as one. What can be neither (VACUUM and its kin) is sent once, and a lost answer to it is an
honest `unknown`. Everything here is steps: generators that ask a driver to send and to wait, so that the blocking and
the asyncio client share every line. Refuses to touch sockets.
"""

import json
import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import quote

from plainsql.errors import NetworkError, ResultError, ServiceError, SettingsError, service_error
from plainsql.result import Result, TransactionResult
from plainsql.settings import Settings, parse_url
from plainsql.statements import looks_like_a_read
from plainsql.values import decode_json, encode_params
from plainsql.wire import AddressBook, Lost, NotSent, Request, Response, Send, Sleep, Steps

DEFAULT_TIMEOUT_S = 60.0
# The longest that any tier allows; the service cuts it to its own.
STREAM_LIFE_S = 3600.0

# The service keeps to the deadline that it is told; its answer needs some time to come.
_GRACE_S = 5.0
_FIRST_DELAY_S = 0.02
_DELAY_S_MAX = 2.0
# Statements that turned out to write although they look like reads.
_REMEMBERED_WRITES = 256
_JSON = ("Content-Type", "application/json")


class StreamForm(Enum):
    """In which form a stream's rows come."""

    ARRAYS = "arrays"
    OBJECTS = "objects"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Options:
    """How one call is made; None stands for the client's or the service's own choice."""

    database: str | None = None
    timeout_s: float | None = None
    max_rows: int | None = None
    read_only: bool | None = None
    idempotency_key: str | None = None


@dataclass(slots=True)
class Core:
    """One client's side of the protocol, without its sockets."""

    settings: Settings
    timeout_s: float = DEFAULT_TIMEOUT_S
    addresses: AddressBook = field(init=False)
    _writes: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.addresses = AddressBook(self.settings.address, self.settings.control)

    def query(self, sql: str, params: Sequence[Any], options: Options) -> Steps[Result]:
        """One statement, with all rows of its result."""
        try:
            answer, response = yield from self._statement(sql, params, options)
        except ServiceError as error:
            error.sql = sql
            raise
        result = Result.of(answer, replayed="idempotency-replayed" in response.headers)
        if result.truncated and options.max_rows is None:
            raise ResultError(
                f"The result has more than the {len(result)} rows that your tier allows at once: use stream(), "
                "or say max_rows to have it cut there."
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
            # VACUUM and its kin run in no transaction, and a key needs one; nothing has been done.
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
        response = yield from self._exchange(request, self._timeout(options), safe=read_only or key is not None)
        return answer_of(response), response

    def query_body(
        self, sql: str, params: Sequence[Any], options: Options, *, read_only: bool, row_format: str = "array"
    ) -> bytes:
        """The body of POST /v1/query."""
        content: dict[str, Any] = {"sql": sql, "row_format": row_format, **self._common(options)}
        if params:
            content["params"] = encode_params(params)
        if read_only:
            content["read_only"] = True
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()

    def stream(
        self, sql: str, params: Sequence[Any], options: Options, form: StreamForm = StreamForm.ARRAYS
    ) -> Steps[Response]:
        """Opens a stream. A read is tried again while nothing of it has come; a write is sent once."""
        read_only = options.read_only
        if read_only is None and looks_like_a_read(sql) and sql not in self._writes:
            try:
                return (yield from self._open_stream(sql, params, options, form, read_only=True))
            except ServiceError as error:
                if error.code != "read_only_sql_transaction":
                    raise
                self._remember_write(sql)
        return (yield from self._open_stream(sql, params, options, form, read_only=bool(read_only)))

    def _open_stream(
        self, sql: str, params: Sequence[Any], options: Options, form: StreamForm, *, read_only: bool
    ) -> Steps[Response]:
        row_format = "array" if form is StreamForm.ARRAYS else "object"
        body = self.query_body(sql, params, options, read_only=read_only, row_format=row_format)
        accept = "text/csv" if form is StreamForm.CSV else "application/x-ndjson"
        request = Request("POST", "/v1/query", (_JSON, ("Accept", accept)), body)
        response = yield from self._exchange(request, self._timeout(options), safe=read_only, as_stream=True)
        if response.source is None:
            try:
                answer_of(response)
            except ServiceError as error:
                error.sql = sql
                raise
            raise NetworkError("The answer is no stream.", outcome="unknown")
        return response

    def transaction(
        self, statements: Sequence[Mapping[str, Any]], options: Options, max_retries: int | None
    ) -> Steps[TransactionResult]:
        """All statements, or none of them."""
        content: dict[str, Any] = {"statements": statements, "row_format": "array", **self._common(options)}
        if options.read_only:
            content["read_only"] = True
        if max_retries is not None:
            content["max_retries"] = max_retries
        key = None if options.read_only else options.idempotency_key or _new_key()
        body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
        request = Request("POST", "/v1/transaction", _headers(key), body)
        try:
            response = yield from self._exchange(request, self._timeout(options), safe=True)
            answer = answer_of(response)
        except ServiceError as error:
            if error.statement_index is not None and error.statement_index < len(statements):
                error.sql = statements[error.statement_index]["sql"]
            raise
        return TransactionResult(
            results=[Result.of({**each, "request_id": answer["request_id"]}) for each in answer["results"]],
            affected_rows=answer["affected_rows"],
            attempts=answer["transaction"]["attempts"],
            transaction_id=answer["transaction"]["id"],
            request_id=answer["request_id"],
            replayed="idempotency-replayed" in response.headers,
        )

    def request_outcome(self, key: str, options: Options) -> Steps[str]:
        """What became of the request with this idempotency key."""
        answer = yield from self.get(f"/v1/requests/{quote(key, safe='')}", options)
        return str(answer["request"]["outcome"])

    def get(self, target: str, options: Options = Options()) -> Steps[Any]:  # noqa: B008  # frozen
        """The answer to a GET on the data plane."""
        database = options.database or self.settings.database
        headers = (("X-Database", database),) if database else ()
        response = yield from self._exchange(Request("GET", target, headers), self._timeout(options), safe=True)
        return answer_of(response)

    def health(self) -> Steps[Any]:
        """The answer of GET /health, which is no error where it says that something is away."""
        response = yield from self._exchange(Request("GET", "/health"), self.timeout_s, safe=False)
        return decode_json(response.body)

    def control(self, method: str, target: str, content: Any = None) -> Steps[Any]:
        """The answer of the control plane. Only what can be repeated without harm is sent again after a loss."""
        yield from self.find_control()
        body = b"" if content is None else json.dumps(content).encode()
        request = Request(method, target, (_JSON,) if body else (), body, to_control=True)
        safe = method in ("GET", "DELETE", "PATCH")
        response = yield from self._exchange(request, self.timeout_s, safe=safe)
        return answer_of(response) if response.body else None

    def find_control(self) -> Steps[None]:
        """Asks the data plane where the control plane is, once."""
        if self.addresses.control is not None:
            return
        banner = yield from self.get("/")
        if not banner.get("control_url"):
            raise SettingsError("The service does not say where its control plane is: pass control_url=….")
        control = parse_url(banner["control_url"])
        if control.scheme != "https" and self.settings.address.scheme == "https":
            raise SettingsError(f"The control plane at {control.url} has no TLS; the key is not sent there.")
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

    def _exchange(self, request: Request, timeout_s: float, *, safe: bool, as_stream: bool = False) -> Steps[Response]:
        """Sends, and sends again what may be sent again, until the time is up."""
        end = time.monotonic() + timeout_s + _GRACE_S
        delay = _FIRST_DELAY_S
        was_lost = False
        while True:
            failure: NotSent | Lost | None = None
            response: Response | None = None
            try:
                response = yield Send(request, max(0.001, end - time.monotonic()), as_stream)
                wait = _wait_before_retry(response, safe=safe, was_lost=was_lost)
            except NotSent as error:
                failure, wait = error, 0.0
            except Lost as error:
                failure, wait = error, 0.0 if safe else None
                was_lost = True
            pause = None if wait is None else max(wait, delay * (0.5 + os.urandom(1)[0] / 512))
            if pause is None or time.monotonic() + pause > end - _GRACE_S:
                if response is not None:
                    return response
                raise (yield from self._network_error(request, failure, was_lost=was_lost))
            yield Sleep(pause)
            delay = min(delay * 2, _DELAY_S_MAX)

    def _network_error(self, request: Request, failure: Exception | None, *, was_lost: bool) -> Steps[NetworkError]:
        """What to tell the caller after the last attempt. If the service answers again, it knows what was done."""
        key = next((value for name, value in request.headers if name == "Idempotency-Key"), None)
        if not was_lost:
            return NetworkError(str(failure), outcome="not_executed", idempotency_key=key)
        if key is None:
            return NetworkError(f"{failure} Whether it was done is not known.", outcome="unknown")
        database = json.loads(request.body).get("database")
        headers = (("X-Database", database),) if database else ()
        try:
            response = yield Send(Request("GET", f"/v1/requests/{key}", headers), _GRACE_S)
            done = answer_of(response)["request"]["outcome"] == "committed"
        except (NotSent, Lost, ServiceError):
            done = False
        if done:
            message = f"{failure} It was done; sending the same request with its key again gives its answer."
            return NetworkError(message, outcome="committed", idempotency_key=key)
        # What is under way may still arrive, so that it was not done yet does not mean that it was not done.
        message = f"{failure} Whether it was done is not known; request_outcome() with its key tells later."
        return NetworkError(message, outcome="unknown", idempotency_key=key)


def _new_key() -> str:
    # What `secrets` does, without its imports, which a command waits for.
    return os.urandom(16).hex()


def _headers(key: str | None) -> tuple[tuple[str, str], ...]:
    return (_JSON,) if key is None else (_JSON, ("Idempotency-Key", key))


def _wait_before_retry(response: Response, *, safe: bool, was_lost: bool) -> float | None:
    """How long to wait before the same request is sent again, or None if the answer is to be taken."""
    if response.status not in (409, 429, 503):
        return None
    try:
        error = json.loads(response.body)["error"]
    except (ValueError, KeyError, TypeError):
        # A proxy on the way speaks in its own words.
        error = {"outcome": "unknown", "code": ""}
    if response.status == 409:
        # Our own earlier attempt is still at work; its answer can be had afterwards.
        return 0.05 if was_lost and error["code"] == "request_in_progress" else None
    if not safe and error.get("outcome") != "not_executed":
        return None
    if response.status == 503 and not safe and not error.get("retryable"):
        return None
    told = error.get("retry_after_ms")
    return float(told) / 1000 if told is not None else float(response.headers.get("retry-after", "1"))


def answer_of(response: Response) -> Any:
    """The content of an answer, or the error that it is."""
    try:
        answer = decode_json(response.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        fields = {"code": "no_json", "message": f"The answer with status {response.status} is no JSON object."}
        raise service_error(fields, status=response.status, request_id=response.headers.get("x-request-id"))
    if response.status < 300 and answer.get("success", True):
        return answer
    fields = answer.get("error") or {"code": f"status_{response.status}", "message": "The service gave no reason."}
    raise service_error(fields, status=response.status, request_id=answer.get("request_id"))
