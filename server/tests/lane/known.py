"""Secrets for tests of which callers a learned head knows, and what its last match found."""

from plainsql_server.core import credential
from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.known_head import KnownHead

# Of the form that secrets have, but for the checksum.
KEY = b"svc_k_" + b"aB0" * 12 + b"zZ"
OTHER_KEY = b"svc_k_" + b"x" * 38
TOKEN = b"svc_s_" + b"9" * 38


def caller_in(known: "KnownHead", data: bytes) -> tuple[bytes, bytes | None]:
    """The secret and the database where the last match found them."""
    at = known.database_at
    secret = data[known.secret_at : known.secret_at + credential.SECRET_LENGTH]
    return secret, None if at < 0 else data[at : at + known.database_size]
