"""Confirmations: what a user has to agree to before a transaction that writes is committed.

    token = issue(secret, bound_to(statements, database), Confirmation("agent", now_s + LIFE_S, new_key(), [1]))
    confirmation = opened(secret, bound_to(statements, database), token, "agent", now_s)

A confirmation holds for exactly these statements and parameters, in this database, with this credential, for five
minutes. It is signed with a key derived from the caller's own secret, so each process of the control plane can check it
and none has to store it. An agent doesn't know the secret, and a program that does can write without a confirmation. It
begins with the idempotency key of the commit, so it takes effect once, and its holder can ask for the outcome.
"""

import base64
import hashlib
import hmac
import secrets
from typing import Any, Literal

import msgspec

from plainsql_server.http.control.mcp.refusal import Refused

# Long enough for a user to read what is shown.
LIFE_S = 300
_LABEL = b"plainsql mcp confirmation 1\0"
_MAC_BYTES = 32

# Who has it while the user decides: the client, which asks the user itself, or the agent, which passes it on.
Holder = Literal["client", "agent"]


class Confirmation(msgspec.Struct, array_like=True, frozen=True):
    """What was rehearsed: how many rows each statement changed, and the idempotency key of its commit."""

    holder: Holder
    expires_at_s: int
    idempotency_key: str
    affected_rows: list[int]


_decoder = msgspec.json.Decoder(Confirmation)


def new_key() -> str:
    """The idempotency key of a commit."""
    return f"mcp-{secrets.token_hex(16)}"


def bound_to(statements: Any, database: str | None) -> bytes:
    """What a confirmation is bound to: a digest of the statements, their parameters and the database."""
    return hashlib.sha256(msgspec.json.encode([statements, database], order="deterministic")).digest()


def issue(secret: str, bound: bytes, confirmation: Confirmation) -> str:
    """The confirmation as text."""
    content = msgspec.json.encode(confirmation)
    signed = base64.urlsafe_b64encode(_mac(secret, bound, content) + content).decode()
    return f"{confirmation.idempotency_key}.{signed}"


def opened(secret: str, bound: bytes, text: str, holder: Holder, now_s: float) -> Confirmation:
    """The confirmation in a text. Raises Refused if it is for something else, forged or expired."""
    key, _, signed = text.partition(".")
    try:
        raw = base64.b64decode(signed.encode(), altchars=b"-_", validate=True)
    except ValueError as error:
        raise _refused("isn't valid") from error
    if len(raw) <= _MAC_BYTES:
        raise _refused("isn't valid")
    mac, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, bound, content)):
        raise _refused("is not for these statements, parameters, database and credential")
    confirmation = _decoder.decode(content)
    if confirmation.holder != holder:
        raise _refused("belongs to the client's own question to the user")
    if key != confirmation.idempotency_key:
        raise _refused("isn't valid")
    if confirmation.expires_at_s < now_s:
        # It may have been used before, and its answer been lost.
        raise Refused(
            "The confirmation has expired. This call wrote nothing. If another call with it may have, call "
            f"request_outcome with the key {key}. Otherwise rehearse the statements again, without a confirmation."
        )
    return confirmation


def _mac(secret: str, bound: bytes, content: bytes) -> bytes:
    key = hashlib.sha256(_LABEL + secret.encode()).digest()
    return hmac.digest(key, bound + content, "sha256")


def _refused(why: str) -> Refused:
    return Refused(
        f"The confirmation {why}. Nothing was written. Call run_transaction without a confirmation to rehearse the "
        "statements again."
    )
