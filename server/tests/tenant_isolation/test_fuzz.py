"""Random inputs, with and without a valid key: nothing dies, nothing hangs, nothing is our fault.

PLAINSQL_TEST_FUZZ is how many there are: 1,500 in the gate, 100,000 in `make soak`.
"""

import http.client
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.tests.load import STALL_S, size
from server.tests.tenant_isolation.cells import Hostile, hostile_cell
from server.tests.tenant_isolation.random_sql import FUNCTIONS, Function, Generator

pytestmark = pytest.mark.slow

INPUTS = size("PLAINSQL_TEST_FUZZ", 1_500)
SEED = size("PLAINSQL_TEST_FUZZ_SEED", 0) or random.randrange(2**32)
# How many inputs one example has: hypothesis' own work is for each example.
BATCH = 20
# Whatever is asked for, an answer comes within the statement's limit and a little.
ANSWER_S = 60
# And no other answer waits for it in the meantime. A hundred times what it takes on a machine that is not busy.
LONGEST_S = 8.0 + 2 * STALL_S
STATEMENT_MS = 300

_counted = 0


_talkers: list["Talker"] = []


def talkers(hostile: Hostile) -> "Talker":
    """The one client of this file, closed with what it talks to."""
    if not _talkers:
        _talkers.append(Talker(hostile))
    return _talkers[0]


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with hostile_cell(15, body_timeout_ms=1_000) as running:
        with running.client() as client:
            client.post("/v1/query", json={"sql": "create table fuzzed (a int, b text)"}).raise_for_status()
        yield running
        for talker in _talkers:
            talker.close()


def fuzz(share: float) -> settings:
    """As many examples as this share of all inputs takes."""
    return settings(
        max_examples=max(1, int(INPUTS * share / BATCH)), database=None,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip


class Talker:
    """One client, who reconnects when the service closed."""

    def __init__(self, hostile: Hostile) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", hostile.node.port, timeout=ANSWER_S)
        self._key = hostile.key

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, dict[str, Any]]:
        global _counted  # noqa: PLW0603  # the last test looks whether there were enough
        _counted += 1
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": content_type}
        began_s = time.monotonic()
        try:
            try:
                self._connection.request("POST", path, body, headers)
                response = self._connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                self._connection.close()
                self._connection.request("POST", path, body, headers)
                response = self._connection.getresponse()
            answer = response.read()
        except TimeoutError as error:
            # What comes after it must not fail for it.
            self._connection.close()
            raise AssertionError("no answer", path, len(body), body[:200]) from error
        assert time.monotonic() - began_s < LONGEST_S, (path, len(body), body[:200])
        if response.headers.get_content_type() == "text/event-stream":
            return response.status, _end_of_stream(answer)
        # A number may have more digits than Python converts.
        return response.status, json.loads(answer, parse_int=str)


def _end_of_stream(body: bytes) -> dict[str, Any]:
    """The last event, in the shape of an answer."""
    events = body.decode().rstrip().split("\n\n")
    kind, _, data = events[-1].partition("\ndata: ")
    assert kind in ("event: done", "event: error"), events
    request_id = json.loads(events[0].partition("\ndata: ")[2])["request_id"]
    return {"success": kind == "event: done", "request_id": request_id, "error": json.loads(data)}


def check(status: int, answer: dict[str, Any], what: object) -> None:
    """Every answer has the one shape, and none is a failure of ours."""
    assert isinstance(answer["success"], bool), (what, answer)
    assert answer["request_id"].startswith("req_")
    assert status in (200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 503), (status, what, answer)
    if not answer["success"]:
        assert answer["error"]["code"] != "service_failure", (what, answer)


TOKENS = st.sampled_from(
    ["select", "from", "$1", "$2", "$99999", "(", ")", "'", '"', "$$", "$a$", ";", "--", "/*", "*/", "/*+ STREAM */",
     "\n", "\\", "e'\\", "u&'", "::", "int", "begin", "commit", "prepare transaction", "copy", "do", "1e999999",
     "union", "with", "returning", "pg_sleep(0.01)", "\ufeff", "\u2028", "é", "insert into fuzzed",
     "null", ",", "array["]
)  # fmt: skip
# The same again and again, up to more than a statement may have: what is dear to look at shows by its length.
LONG = (
    st.tuples(TOKENS, TOKENS | st.text(max_size=3), st.sampled_from([1_000, 50_000, 300_000]))
    .filter(lambda parts: parts[2] == 1_000 or not is_read_for_minutes(parts[0], parts[1]))
    .map(lambda parts: parts[0] + " " + parts[1] * parts[2])
)


def is_read_for_minutes(first: str, repeated: str) -> bool:
    """Whether PostgreSQL reads it for minutes, and ignores cancels meanwhile; docs/security.md says why.

    That such a statement costs its sender a slot and delays no other tenant is shown by `test_traps.py`, with XPath.
    """
    is_operators = bool(re.fullmatch(r"[~!@#^&|`?+*/%<>=-]+", repeated))
    return (is_operators and ("+" in repeated or "/*" in repeated * 2)) or (first == "do" and "'" in repeated)


SQL_TEXT = st.one_of(st.text(max_size=200), *([st.lists(TOKENS, max_size=30).map(" ".join)] * 8), LONG)


@fuzz(0.3)
@given(st.lists(SQL_TEXT, min_size=BATCH, max_size=BATCH), st.sampled_from(["/v1/query", "/query", "/v1/transaction"]))
def test_any_text_is_answered(hostile: Hostile, texts: list[str], path: str) -> None:
    talker = talkers(hostile)
    for text in texts:
        if path == "/query":
            body, content_type = text.encode(errors="surrogatepass"), "text/plain"
        else:
            fields = {"sql": text} if path == "/v1/query" else {"statements": [text, "select 1"]}
            body, content_type = json.dumps({**fields, "timeout_ms": STATEMENT_MS}).encode(), "application/json"
        status, answer = talker.post(path, body, content_type)
        check(status, answer, text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "sql": st.sampled_from(["select $1", "select $1::int, $2", "select $1::jsonb", "select $1::int[]"]) | JSON,
        "params": st.lists(JSON, max_size=3) | JSON,
        "statements": st.lists(st.just("select 1") | JSON, max_size=3) | JSON,
        "database": JSON, "row_format": JSON, "big_numbers": JSON, "max_rows": JSON, "timeout_ms": JSON,
        "read_only": JSON, "max_retries": JSON, "unknown": JSON,
    },
)  # fmt: skip
BODIES = st.one_of(
    FIELDS.map(lambda fields: json.dumps(fields).encode()), JSON.map(lambda it: json.dumps(it).encode()),
    st.binary(max_size=300),
)  # fmt: skip


@fuzz(0.3)
@given(st.lists(BODIES, min_size=BATCH, max_size=BATCH), st.sampled_from(["/v1/query", "/v1/transaction"]))
def test_any_body_is_answered(hostile: Hostile, bodies: list[bytes], path: str) -> None:
    talker = talkers(hostile)
    for body in bodies:
        status, answer = talker.post(path, body)
        check(status, answer, body)


NAMES = st.sampled_from(
    [b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"Upgrade", b"Authorization",
     b"Accept", b"X-Database", b"X-Request-Id", b"Idempotency-Key", b"Content-Type", b"Content-Encoding", b"Origin",
     b"Cookie", b"traceparent"]
) | st.binary(max_size=20)  # fmt: skip
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=60)), max_size=6)
LINES = st.tuples(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"BREW"]),
    st.sampled_from([b"/", b"/v1/query", b"/query", b"/health?live", b"/%00", b"*", b"//x", b"/v1/requests/%ff"])
    | st.binary(max_size=30).map(lambda raw: b"/" + raw),
)


def tell(hostile: Hostile, raw: bytes) -> bytes:
    """What comes back until the service closes; the sender has closed its own side."""
    global _counted  # noqa: PLW0603
    _counted += 1
    with socket.create_connection(("127.0.0.1", hostile.node.port), timeout=ANSWER_S) as connection:
        answer = b""
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            return answer
    return answer


def check_raw(answer: bytes, raw: bytes) -> None:
    assert not answer or answer.startswith(b"HTTP/1.1 "), (raw, answer)
    assert b"HTTP/1.1 500" not in answer, (raw, answer)


@fuzz(0.1)
@given(LINES, st.lists(HEADERS, min_size=BATCH, max_size=BATCH), st.binary(max_size=40))
def test_any_headers_are_answered_or_refused(
    hostile: Hostile, line: tuple[bytes, bytes], many: list[list[tuple[bytes, bytes]]], body: bytes
) -> None:
    for headers in many:
        raw = b"%b %b HTTP/1.1\r\n" % line + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n" + body
        check_raw(tell(hostile, raw), raw)


@fuzz(0.1)
@given(st.lists(st.binary(max_size=400), min_size=BATCH, max_size=BATCH))
def test_any_bytes_are_answered_or_refused(hostile: Hostile, many: list[bytes]) -> None:
    for raw in many:
        check_raw(tell(hostile, raw), raw)


def test_random_statements_of_every_function_are_answered(hostile: Hostile) -> None:
    talker = talkers(hostile)
    _, answer = talker.post("/v1/query", json.dumps({"sql": FUNCTIONS}).encode())
    functions = [
        Function(row["proname"], row["types"].split(",") if row["types"] else [], row["kind"]) for row in answer["rows"]
    ]
    assert len(functions) > 800
    succeeded = 0
    for number in range(int(INPUTS * 0.2)):
        sql = Generator(functions, SEED + number).statement()
        fields = {"sql": f"/*+ STREAM */ {sql}" if number % 10 == 0 else sql, "timeout_ms": STATEMENT_MS}
        status, answer = talker.post("/v1/query", json.dumps(fields).encode())
        check(status, answer, (SEED + number, sql))
        succeeded += answer["success"]
    # Statements that are all refused by the parser would try nothing.
    assert succeeded > INPUTS * 0.2 / 5


# The last test of this file.
def test_the_service_and_postgresql_survive_the_fuzzer(hostile: Hostile) -> None:
    print(f"fuzzed: {_counted} inputs, seed {SEED}")
    assert hostile.node.process.poll() is None
    assert hostile.node.health().json()["status"] == "ok"
    with hostile.postgres.connect() as admin:
        started = "select pg_postmaster_start_time() <= (select min(backend_start) from pg_stat_activity)"
        assert admin.execute(started).fetchone() == (True,)
    log = (hostile.folder / "log").read_text()
    assert "terminated by signal" not in log
    assert "service_failure" not in hostile.node.log.read_text()
