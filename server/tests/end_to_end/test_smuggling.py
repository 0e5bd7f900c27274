"""Requests that two parsers might read differently, sent raw: to the data plane, and through the alias.

Each holds a second request where one parser could find it and the other not. A parser may reject it; one that
understands must see one request. And whatever was sent through the alias, the next ones' answers must be theirs.
"""

import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from server.tests.service import Service

# Answered to anybody, with a word that no other answer has.
HIDDEN = b"GET /health?live HTTP/1.1\r\nHost: x\r\n\r\n"
FOUND = b"uptime_s"
HIDDEN_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)


def post(*headers: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1", target: bytes = b"/query") -> bytes:
    """A request that is refused for its lack of a key, once it is understood."""
    lines = [b"POST %b %b" % (target, version), b"Host: x", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_LENGTH = b"Content-Length: %d" % len(HIDDEN)
_CHUNKED = b"Transfer-Encoding: chunked"

CORPUS = {
    "two lengths that differ": post(b"Content-Length: 0", _LENGTH, body=HIDDEN),
    "two lengths that differ, the other way round": post(_LENGTH, b"Content-Length: 0", body=HIDDEN),
    "two lengths in one header": post(b"Content-Length: 0, %d" % len(HIDDEN), body=HIDDEN),
    "length and chunks": post(_LENGTH, _CHUNKED, body=b"0\r\n\r\n" + HIDDEN),
    "chunks and length": post(_CHUNKED, _LENGTH, body=b"0\r\n\r\n" + HIDDEN),
    "length zero and chunks": post(b"Content-Length: 0", _CHUNKED, body=HIDDEN_CHUNK),
    "a length with a sign": post(b"Content-Length: +%d" % len(HIDDEN), body=HIDDEN),
    "a length below zero": post(b"Content-Length: -1", body=HIDDEN),
    "a length in hexadecimal": post(b"Content-Length: 0x%x" % len(HIDDEN), body=HIDDEN),
    "a length with a space in it": post(b"Content-Length: 1 0", body=HIDDEN),
    "a length that overflows": post(b"Content-Length: 18446744073709551616", body=HIDDEN),
    "a length with a space before its colon": post(b"Content-Length : %d" % len(HIDDEN), body=HIDDEN),
    "a length with an underscore in its name": post(b"Content_Length: %d" % len(HIDDEN), b"Content-Length: 0"),
    "chunks with a space before their colon": post(b"Transfer-Encoding : chunked", _LENGTH, body=HIDDEN),
    "chunks after a vertical tab": post(b"Transfer-Encoding: \x0bchunked", _LENGTH, body=HIDDEN),
    "chunks that are no chunks": post(b"Transfer-Encoding: xchunked", _LENGTH, body=HIDDEN),
    "chunks twice": post(b"Transfer-Encoding: chunked, chunked", body=HIDDEN_CHUNK),
    "chunks and identity": post(_CHUNKED, b"Transfer-Encoding: identity", body=HIDDEN_CHUNK),
    "chunks in HTTP/1.0": post(_CHUNKED, _LENGTH, body=b"0\r\n\r\n" + HIDDEN, version=b"HTTP/1.0"),
    "chunks in a folded header": post(b"Transfer-Encoding:\r\n chunked", _LENGTH, body=HIDDEN),
    "a chunk's length that overflows": post(_CHUNKED, body=b"10000000000000000\r\n" + HIDDEN),
    "a chunk's length with a sign": post(_CHUNKED, body=b"+0\r\n\r\n" + HIDDEN),
    "a chunk longer than it says": post(_CHUNKED, body=b"1\r\n" + HIDDEN + b"\r\n0\r\n\r\n"),
    "a chunk with a line's end in its extension": post(_CHUNKED, body=b"%x;a\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "a header after a bare line feed": post(b"X: a\nContent-Length: %d" % len(HIDDEN), body=HIDDEN),
    "a header after a bare carriage return": post(b"X: a\rContent-Length: %d" % len(HIDDEN), body=HIDDEN),
    "a zero byte in a header": post(b"X: a\0b", _LENGTH, body=HIDDEN),
    "a header without a name": post(b": a", _LENGTH, body=HIDDEN),
    "a header without a colon": post(b"Content-Length", _LENGTH, body=HIDDEN),
    "an absolute address": post(_LENGTH, body=HIDDEN, target=b"http://elsewhere.example/query"),
    "two hosts": post(b"Host: y", _LENGTH, body=HIDDEN),
    "a length with a plus and spaces": post(b"Content-Length:  + 5", body=HIDDEN),
    "a length in two cases": post(_LENGTH, b"CONTENT-LENGTH: 0", body=HIDDEN),
    "a length that is empty": post(b"Content-Length:", body=HIDDEN),
    "a length with a fraction": post(b"Content-Length: 1.0", body=HIDDEN),
    "a length in other digits": post("Content-Length: ٣".encode(), body=HIDDEN),
    "a length after a tab": post(b"\tContent-Length: %d" % len(HIDDEN), body=HIDDEN),
    "chunks under a name with a zero byte": post(b"Transfer-Encoding\0: chunked", _LENGTH, body=HIDDEN),
    "chunks in quotation marks": post(b'Transfer-Encoding: "chunked"', _LENGTH, body=HIDDEN),
    "chunks after a comma": post(b"Transfer-Encoding: , chunked", _LENGTH, body=HIDDEN),
    "chunks and gzip": post(b"Transfer-Encoding: chunked, gzip", _LENGTH, body=HIDDEN),
    "gzip and chunks": post(b"Transfer-Encoding: gzip, chunked", body=HIDDEN_CHUNK),
    "chunks with a parameter": post(b"Transfer-Encoding: chunked;q=1", _LENGTH, body=HIDDEN),
    "chunks twice in two headers": post(_CHUNKED, _CHUNKED, body=HIDDEN_CHUNK),
    "an empty encoding and a length": post(b"Transfer-Encoding:", _LENGTH, body=HIDDEN),
    "a chunk's length in octal's clothes": post(_CHUNKED, body=b"0o0\r\n\r\n" + HIDDEN),
    "a chunk's length with an x": post(_CHUNKED, body=b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "a chunk's length that is empty": post(_CHUNKED, body=b"\r\n%b\r\n0\r\n\r\n" % HIDDEN),
    "a chunk's length after a space": post(_CHUNKED, body=b" %x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "a chunk without its line's end": post(_CHUNKED, body=b"%x\r\n%b0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    "lines that end in bare line feeds": post(_LENGTH, body=HIDDEN).replace(b"\r\n", b"\n"),
    "a request line with three words too many": b"POST /query HTTP/1.1 x y z\r\nHost: x\r\n%b\r\n\r\n%b"
    % (_LENGTH, HIDDEN),
    "a version that is none": post(_LENGTH, body=HIDDEN, version=b"HTTP/1.9"),
    "a version that is another protocol's": post(_LENGTH, body=HIDDEN, version=b"HTTP/2.0"),
    "no version": b"POST /query\r\n\r\n" + HIDDEN,
    "a method in lower case": b"post /query HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (_LENGTH, HIDDEN),
    "an upgrade": post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", _LENGTH, body=HIDDEN),
    "a proxy's request": b"CONNECT /query HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (_LENGTH, HIDDEN),
    "a target with a line's end": post(_LENGTH, body=HIDDEN, target=b"/query\x0bHTTP/1.1"),
    "a host that is two": post(b"Host: x, y", _LENGTH, body=HIDDEN),
    "headers that only the next hop may see": post(b"Connection: Content-Length", _LENGTH, body=HIDDEN),
    "a body where none is announced": b"POST /query HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + HIDDEN,
}
# What an understood request without a key gets, and what refusals look like. 408 is for one that never ends.
EXPECTED = {400, 401, 404, 405, 408, 413}


@dataclass(frozen=True)
class Place:
    """Where requests can be sent."""

    host: str
    port: int

    def tell(self, request: bytes) -> bytes:
        """All that comes back until the connection is closed or nothing is said for a while."""
        with socket.create_connection((self.host, self.port), timeout=30) as connection:
            connection.sendall(request)
            answer = b""
            try:
                while chunk := connection.recv(1 << 20):
                    answer += chunk
                    connection.settimeout(1.0)
            except (TimeoutError, ConnectionResetError):
                return answer
        return answer


@pytest.fixture(scope="module")
def places(plain_service: Service) -> dict[str, Place]:
    return {name: _place(plain_service, name) for name in ("data", "alias")}


def _place(service: Service, name: str) -> Place:
    address = urlsplit(str(service.dev[f"{name}_url"]))
    return Place("127.0.0.1", address.port or 80)


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 40


@pytest.mark.parametrize("name", CORPUS)
def test_no_second_request_is_found_in_one(places: dict[str, Place], name: str) -> None:
    answers = {place: places[place].tell(CORPUS[name]) for place in ("data", "alias")}
    for place, answer in answers.items():
        assert FOUND not in answer, (place, answer)
        assert set(statuses(answer)) <= EXPECTED, (place, answer)
    for number in range(3):
        clean = b"GET /clean-%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % number
        answer = places["alias"].tell(clean)
        assert statuses(answer) == [404], answer
        assert b"/clean-%d" % number in answer


def test_an_absolute_url_is_handled_the_same(places: dict[str, Place]) -> None:
    request = b"GET http://elsewhere.example/health?live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for place in places.values():
        answer = place.tell(request)
        assert statuses(answer) == [200]
        assert FOUND in answer


@pytest.mark.parametrize("path", [b"/v1/%6beys", b"/v1/./keys", b"/v1/x/../keys", b"/v1/keys/", b"/%76%31/keys"])
def test_no_spelling_of_a_control_route_reaches_the_data_plane_as_something_else(
    places: dict[str, Place], path: bytes
) -> None:
    answer = places["alias"].tell(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path)
    assert statuses(answer)[0] in (308, 404)


def test_well_formed_requests_are_answered_the_same_directly_and_through_the_alias(places: dict[str, Place]) -> None:
    sound = {
        b"length": post(_LENGTH, b"Connection: close", body=HIDDEN),
        b"chunks": post(_CHUNKED, b"Connection: close", body=HIDDEN_CHUNK),
        b"two requests": post(_LENGTH, body=HIDDEN) + HIDDEN,
    }
    for place in places.values():
        assert statuses(place.tell(sound[b"length"])) == [401]
        assert statuses(place.tell(sound[b"chunks"])) == [401]
        assert statuses(place.tell(sound[b"two requests"])) == [401, 200]
