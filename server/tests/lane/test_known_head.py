"""A head is known only if it is the same bytes, but for spans of the strictest form."""

import weakref
from urllib.parse import unquote

import pytest

from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.server.requests import Request

if COMPILED:
    from plainsql_server.lane.known_head import KnownHead
    from plainsql_server.lane.learning import LearnedHead, LearnedHeads, learn_head

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KEY, OTHER_KEY = (b"svc_k_" + letters for letters in (b"aB0" * 12 + b"zZ", b"x" * 38))
HEAD = (
    b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + KEY + b"\r\n"
    b"Content-Type: application/json\r\nContent-Length: %b\r\n\r\n"
)


def learned(data: bytes) -> "LearnedHead | None":
    return learn_head(data, parsed(data), b"application/json", secret_of)


def known_by(data: bytes) -> "KnownHead":
    head = learned(data)
    assert head is not None
    return head.known


def parsed(data: bytes) -> Request:
    """The request that the parser makes of these bytes."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    method, target, _ = lines[0].decode().split(" ")
    path, _, query_string = target.partition("?")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    return Request(method, unquote(path), query_string.encode(), headers, body=body)


def test_a_head_that_was_read_is_known_with_another_length() -> None:
    head = learned(HEAD % b"2" + b"{}")
    assert head is not None
    data = HEAD % b"14" + b'{"sql":"x"}   '
    assert head.known.match(data) == head.known.COMPLETE
    assert data[head.known.body_at :] == b'{"sql":"x"}   '
    assert head.known.body_size == 14
    assert data[head.known.secret_at :].startswith(KEY)
    assert (head.known.database_at, head.known.database_size, head.cors) == (-1, 0, b"")


@pytest.mark.parametrize(
    "length", [b"", b"0", b"02", b"+2", b"-2", b" 2", b"2 ", b"0x2", b"2,2", b"65537", b"9999999", b"2\r\nX: y"]
)
def test_another_form_of_the_length_is_not_known(length: bytes) -> None:
    assert known_by(HEAD % b"2" + b"{}").match(HEAD % length + b"{}") == 0


@pytest.mark.parametrize("at", range(len(HEAD % b"2") - 5))
def test_any_other_byte_makes_it_unknown(at: int) -> None:
    known = known_by(HEAD % b"2" + b"{}")
    data = bytearray(HEAD % b"2" + b"{}")
    data[at] ^= 1
    # A digit of the length may become another one, and a character of the secret.
    is_of_secret = known.secret_at + len("svc_k_") <= at < known.secret_at + len(KEY)
    assert known.match(bytes(data)) == 0 or chr(data[at]) in "3" or (is_of_secret and chr(data[at]).isalnum())


def test_a_long_head_is_not_learned() -> None:
    def padded(size: int) -> bytes:
        head = (HEAD % b"2").replace(b"\r\n\r\n", b"\r\nX-Padding: %b\r\n\r\n")
        return head % (b"x" * (size - len(head % b""))) + b"{}"

    assert learned(padded(2_048)) is not None
    assert learned(padded(2_049)) is None


def test_a_body_that_has_not_arrived_whole_is_incomplete() -> None:
    known = known_by(HEAD % b"2" + b"{}")
    assert [known.match((HEAD % b"12" + b"{}")[:size]) for size in (len(HEAD % b"12") - 1, len(HEAD % b"12"))] == [0, 1]


@pytest.mark.parametrize(
    ("header", "same", "other"),
    [
        (b"X-Request-Id", b"req_abcdefgh", b"req_ABCDEFGH0123456789"),
        (b"traceparent", TRACE, TRACE.replace(b"4bf9", b"0000")),
    ],
)
def test_ids_may_differ(header: bytes, same: bytes, other: bytes) -> None:
    def request(value: bytes) -> bytes:
        return HEAD.replace(b"Host", header + b": " + value + b"\r\nHost") % b"2" + b"{}"

    known = known_by(request(same))
    assert known.match(request(other)) == known.COMPLETE
    at = known.id_at if header == b"X-Request-Id" else known.trace_at
    assert request(other)[at:].startswith(other)
    for wrong in (
        b"",
        b"req_short",
        b"req_" + b"a" * 65,
        b"req_abcdefg!",
        b"00-" + b"0" * 32 + TRACE[35:],
        TRACE + b"-x",
    ):
        assert known.match(request(wrong)) == 0


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: h2c", b"Content-Encoding: gzip",
        b"Idempotency-Key: a", b"Accept: text/event-stream", b"Content-Length: 2", b"content-length: 2",
    ],
)  # fmt: skip
def test_a_request_that_is_not_ordinary_is_not_learned(line: bytes) -> None:
    assert learned(HEAD.replace(b"Host", line + b"\r\nHost") % b"2" + b"{}") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST /v1/query", b"POST /v1/%%71uery"), (b"POST /v1/query", b"POST /v1/query?row_format=array"),
        (b"HTTP/1.1", b"HTTP/1.0"), (b"Bearer " + KEY, b"Basic x"), (b"application/json", b"text/plain"),
    ],
)  # fmt: skip
def test_another_path_or_credential_is_not_learned(old: bytes, new: bytes) -> None:
    data = HEAD.replace(old, new) % b"2" + b"{}"
    assert learned(data) is None


def test_connections_with_equal_heads_share_what_was_learned() -> None:
    shared = LearnedHeads()
    data = [
        HEAD % b"2" + b"{}", HEAD % b"13" + b'{"sql":"x"}  ', HEAD.replace(KEY, OTHER_KEY) % b"2" + b"{}",
        HEAD.replace(b"localhost", b"elsewhere") % b"2" + b"{}",
    ]  # fmt: skip
    first, second, third, other = (shared.learn(each, parsed(each), b"application/json", secret_of) for each in data)
    assert first is second is third
    assert first is not None
    assert other is not None
    assert other is not first
    gone = weakref.ref(first)
    del first, second, third
    assert gone() is None


def test_nothing_of_a_caller_is_kept_with_a_head() -> None:
    data = HEAD.replace(b"Host", b"traceparent: " + TRACE + b"\r\nX-Database: mine\r\nHost") % b"2" + b"{}"
    head = learned(data)
    assert head is not None
    assert head.headers == {b"host": b"localhost", b"content-type": b"application/json"}
    assert not any(KEY in part or b"mine" in part for part in head.known.key[0])  # type: ignore[attr-defined]


def test_what_came_with_another_request_is_not_learned() -> None:
    assert learned(HEAD % b"2" + b"{}" + HEAD % b"2") is None
