"""What the relay makes of the service's words to PostgreSQL, however they are cut into pieces."""

import struct

import pytest

from server.tests.consistency.wire import Weakening

pytestmark = pytest.mark.unit


def start_up(isolation: bytes) -> bytes:
    settings = b"user\0someone\0options\0-c default_transaction_isolation=" + isolation + b" -c lock_timeout=0\0\0"
    return struct.pack(">ihh", len(settings) + 8, 3, 0) + settings


def parse(sql: bytes) -> bytes:
    return b"P" + struct.pack(">i", len(sql) + 8) + b"\0" + sql + b"\0\0\0"


CANCEL = struct.pack(">iiii", 16, 80877102, 1, 2)
SENT = start_up(b"serializable") + parse(b"begin isolation level serializable read only") + parse(b"select 1")
HEARD = start_up(b"read\\ committed") + parse(b"begin" + b" " * 29 + b" read only") + parse(b"select 1")


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 64, 1000])
def test_serializable_is_replaced_whatever_the_chunks(chunk_bytes: int) -> None:
    weakening = Weakening("read committed")
    heard = [weakening(SENT[at : at + chunk_bytes]) for at in range(0, len(SENT), chunk_bytes)]
    assert b"".join(heard) == HEARD


def test_a_request_to_cancel_passes_as_it_is() -> None:
    assert Weakening("repeatable read")(CANCEL) == CANCEL
