"""Public ids: a prefix that names the kind, then 32 hexadecimal digits that sort by creation time."""

import os
import random
import re
import time
from enum import StrEnum

# A request id sent by a client is accepted if it looks like one of the service's, of similar length.
_REQUEST_ID = re.compile(rb"req_[0-9A-Za-z]{8,64}\Z")

_ANY_ID = re.compile(r"([a-z]+)_[0-9a-z]{1,64}\Z")

# Ids are not secrets, so a user-space generator is fine and saves a system call for each. A fork gets a new seed, so no
# two processes make the same ids.
_generator = random.Random(int.from_bytes(os.urandom(32)))
os.register_at_fork(after_in_child=_generator.seed)
_fast = _generator.getrandbits


class Kind(StrEnum):
    """What an id identifies. The value is the prefix."""

    REQUEST = "req"
    ORGANIZATION = "org"
    DATABASE = "db"
    CELL = "cell"
    KEY = "key"
    SESSION = "ses"
    TRANSACTION = "txn"
    AUDIT = "aud"
    MOVE = "mov"
    PROCESS = "proc"
    RESTORE = "rst"


def new_id(kind: Kind) -> str:
    """A new id: 48 bits of milliseconds, then 80 random bits."""
    return f"{kind}_{_digits()}"


def new_request_id() -> str:
    """A new request id. Every request needs one, so this avoids the enum lookup of `new_id`."""
    return "req_" + _digits()


def _digits() -> str:
    # Converting via bytes is much faster than formatting numbers.
    return (time.time_ns() // 1_000_000).to_bytes(6, "big").hex() + _fast(80).to_bytes(10, "big").hex()


def is_id(text: str, kind: Kind) -> bool:
    """Whether a text from a client could be an id of this kind. If not, there is no need to look it up."""
    match = _ANY_ID.match(text)
    return match is not None and match[1] == kind


def is_request_id(text: bytes) -> bool:
    """Whether a request id sent by a client can be used as is."""
    return _REQUEST_ID.match(text) is not None
