"""When a client's first TLS message is complete, and what is none."""

import ssl
from contextlib import suppress

import pytest

from plainsql_server.http.server.accepting.client_hello import wanted_bytes

pytestmark = pytest.mark.unit


def client_hello() -> bytes:
    """What a client sends first."""
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def record(content: bytes) -> bytes:
    return b"\x16\x03\x01" + len(content).to_bytes(2) + content


def in_records(hello: bytes, count: int) -> bytes:
    """The same message, spread over so many records, or one more."""
    message = hello[5:]
    size_bytes = len(message) // count
    return b"".join(record(message[at : at + size_bytes]) for at in range(0, len(message), size_bytes))


@pytest.mark.parametrize("count", [1, 5, 25])
@pytest.mark.parametrize("longer_bytes", [0, 1_800])
def test_a_message_is_wanted_until_it_is_complete(count: int, longer_bytes: int) -> None:
    hello = client_hello() if not longer_bytes else record(b"\x01" + longer_bytes.to_bytes(3) + bytes(longer_bytes))
    sent = in_records(hello, count)
    assert wanted_bytes(sent) == wanted_bytes(sent + b"more") == 0
    for length in range(len(sent)):
        # Never more than there will be, or the client would wait for nothing.
        assert length < wanted_bytes(sent[:length]) <= len(sent)


def test_records_that_are_complete_make_no_complete_message() -> None:
    assert wanted_bytes(record(b"\x01")) == 6 + 5 + 3
    assert wanted_bytes(record(b"\x01\x00") + record(b"\x00\x10")) == 14 + 5 + 16


@pytest.mark.parametrize(
    "beginning",
    [
        b"\x17\x03\x01\x00\x01",
        record(b"\x02"),
        record(b""),
        b"\x16\x03\x01\x40\x01",
        record(b"\x01\x01\x00\x00"),
        record(b"\x01\x00\x40\x00"),
        record(b"\x01\x00\x10\x00") + record(b"x") * 40,
        record(b"\x01\x00\x10\x00") + b"\x15\x03",
    ],
)
def test_what_is_no_first_message_is_refused(beginning: bytes) -> None:
    with pytest.raises(ConnectionAbortedError):
        wanted_bytes(beginning)
