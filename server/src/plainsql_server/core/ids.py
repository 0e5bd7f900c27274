"""Public identifiers: a prefix that names the kind, then 26 characters that sort by time of creation.

Owns the shape of an id. Refuses to know what an id stands for or where it is stored.
"""

import os
import re
import time
from enum import StrEnum

# Crockford's base 32: no I, L, O or U, so that an id read aloud or copied by hand stays itself.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

# A caller's own request id is kept if it could be one of ours, or any id as short and as plain.
_REQUEST_ID = re.compile(rb"req_[0-9A-Za-z]{8,64}\Z")


class Kind(StrEnum):
    """What an id stands for; the value is its prefix."""

    REQUEST = "req"
    ORGANIZATION = "org"
    DATABASE = "db"
    CELL = "cell"
    KEY = "key"
    SESSION = "ses"
    TRANSACTION = "txn"


def new_id(kind: Kind) -> str:
    """A fresh id: 48 bits of milliseconds, then 80 random bits (82 bits are left, two are zero)."""
    bits = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    # 26 characters hold 130 bits; two at a time halves the work on the hot path.
    body = "".join([_PAIRS[bits >> shift & 1023] for shift in range(120, -1, -10)])
    return f"{kind.value}_{body}"


def is_request_id(text: bytes) -> bool:
    """Whether a request id sent by a client may be kept as it is."""
    return _REQUEST_ID.match(text) is not None
