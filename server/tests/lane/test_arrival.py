"""What is in a socket, before it is read: whole messages, or perhaps part of one."""

import socket

import pytest

from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.engine.arrival import peeked

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

NOTHING, WHOLE, PART = 0, 1, 2
PARSED, BOUND, READY = b"1\0\0\0\4", b"2\0\0\0\4", b"Z\0\0\0\5I"


def arrival(data: bytes, *, has_tls: bool) -> int:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        found = peeked(ours.fileno(), has_tls)
        # It is still there.
        assert not data or ours.recv(len(data)) == data
        return found


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", NOTHING), (PARSED, WHOLE), (BOUND, WHOLE), (READY, WHOLE), (PARSED + b"xyz", WHOLE), (PARSED[:4], PART),
        (b"E\0\0\x1f\xff", WHOLE), (b"E\0\0\x20\0", PART), (b"E\0\1\0\0", PART), (b"E\1\0\0\0", PART),
        # The rest of a row, an error or a description.
        (b"D\0\0\0\x0b", PART), (b"T\0\0\0\x20", PART), (b"C\0\0\0\x0d", PART), (b"xxxxxxxxx", PART),
        (b"\0\0\0\4x", PART),
    ],
)  # fmt: skip
def test_a_message_is_known_by_its_head(data: bytes, found: int) -> None:
    assert arrival(data, has_tls=False) == found


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", NOTHING), (b"\x17\3\3\0\x20", WHOLE), (b"\x17\3\3\x1f\xff", WHOLE), (b"\x17\3\3\x20\0", PART),
        (b"\x17\3\3\x40\x11", PART), (b"\x17\3\3\0", PART),
    ],
)  # fmt: skip
def test_a_record_of_tls_is_known_by_its_length(data: bytes, found: int) -> None:
    assert arrival(data, has_tls=True) == found


@pytest.mark.parametrize("has_tls", [False, True])
def test_the_end_of_a_connection_is_to_be_read(has_tls: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert peeked(ours.fileno(), has_tls) == WHOLE
