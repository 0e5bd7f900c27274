"""Public identifiers: a prefix that names the kind, then 32 hexadecimal digits that sort by time of creation.

Owns the shape of an id. Refuses to know what an id stands for or where it is stored.
"""

import os
import random
import re
import time
from enum import StrEnum

# A caller's own request id is kept if it could be one of ours, or any id as short and as plain.
_REQUEST_ID = re.compile(rb"req_[0-9A-Za-z]{8,64}\Z")

_ANY_ID = re.compile(r"([a-z]+)_[0-9a-z]{1,64}\Z")

# Ids are names and no secrets; a generator in user space spares a system call for each. Processes are
# started afresh, never forked, so that no two share its state.
_fast = random.Random(int.from_bytes(os.urandom(32))).getrandbits


class Kind(StrEnum):
    """What an id stands for; the value is its prefix."""

    REQUEST = "req"
    ORGANIZATION = "org"
    DATABASE = "db"
    CELL = "cell"
    KEY = "key"
    SESSION = "ses"
    TRANSACTION = "txn"
    AUDIT = "aud"
    MOVE = "mov"


def new_id(kind: Kind) -> str:
    """A fresh id: 48 bits of milliseconds, then 80 random bits."""
    return f"{kind}_{_digits()}"


def new_request_id() -> str:
    """A fresh id for a request; each has one, so that it is made without a look at the kinds."""
    return "req_" + _digits()


def _digits() -> str:
    # By way of bytes, which is far quicker than formatting numbers.
    return (time.time_ns() // 1_000_000).to_bytes(6, "big").hex() + _fast(80).to_bytes(10, "big").hex()


def is_id(text: str, kind: Kind) -> bool:
    """Whether a text from outside could be an id of that kind; what could not need not be looked up."""
    match = _ANY_ID.match(text)
    return match is not None and match[1] == kind


def is_request_id(text: bytes) -> bool:
    """Whether a request id sent by a client may be kept as it is."""
    return _REQUEST_ID.match(text) is not None
