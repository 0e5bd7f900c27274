"""API keys and session tokens: how they are generated, recognized and stored.

A secret is a prefix, 32 base-62 characters (190 random bits) and 6 base-62 characters with the CRC-32 of everything
before them. So a typo is rejected without a lookup, and scanners for leaked secrets have no false positives. A secret
is never stored or logged. Its SHA-256 is stored, which needs no salt or stretching because the secret is random.
"""

import hashlib
import secrets
import zlib
from dataclasses import dataclass

KEY_PREFIX = "svc_k_"
SESSION_PREFIX = "svc_s_"

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALLOWED = frozenset(_ALPHABET)
_RANDOM_LENGTH = 32
_CHECKSUM_LENGTH = 6
_PREFIX_LENGTH = len(KEY_PREFIX)
SECRET_LENGTH = _PREFIX_LENGTH + _RANDOM_LENGTH + _CHECKSUM_LENGTH


@dataclass(frozen=True, slots=True)
class Secret:
    """A new secret. It is shown to its owner once and not kept."""

    text: str

    @property
    def digest(self) -> bytes:
        return digest(self.text)

    @property
    def shown_prefix(self) -> str:
        """The first characters: enough to tell keys apart, too few to guess the rest."""
        return self.text[: _PREFIX_LENGTH + 4]

    @property
    def last_four(self) -> str:
        return self.text[-4:]

    def __repr__(self) -> str:
        return f"Secret({self.shown_prefix}…)"


def new_key() -> Secret:
    """Generates an API key."""
    return _new_secret(KEY_PREFIX)


def new_session_token() -> Secret:
    """Generates a session token."""
    return _new_secret(SESSION_PREFIX)


def digest(secret: str) -> bytes:
    """The SHA-256 that is stored and looked up instead of the secret."""
    return hashlib.sha256(secret.encode()).digest()


def is_well_formed(secret: str) -> bool:
    """Whether the text has the format and checksum of a secret. That does not mean that the secret is known."""
    if len(secret) != SECRET_LENGTH or not secret.startswith((KEY_PREFIX, SESSION_PREFIX)):
        return False
    if not _ALLOWED.issuperset(secret[_PREFIX_LENGTH:]):
        return False
    return secret[-_CHECKSUM_LENGTH:] == _checksum(secret[:-_CHECKSUM_LENGTH])


def _new_secret(prefix: str) -> Secret:
    body = prefix + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return Secret(body + _checksum(body))


def _checksum(text: str) -> str:
    # 62 ** 6 exceeds 2 ** 32, so six characters hold every CRC-32.
    number = zlib.crc32(text.encode())
    digits = []
    for _ in range(_CHECKSUM_LENGTH):
        number, remainder = divmod(number, 62)
        digits.append(_ALPHABET[remainder])
    return "".join(reversed(digits))
