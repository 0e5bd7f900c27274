"""Seals and opens record secrets, with AES-256-GCM and the keys in PLAINSQL_SECRETS_KEYS.

    keyring = Keyring.of(settings.secrets_keys)
    stored = keyring.new("d_0f3c…")          # a new secret, as the directory stores it
    keyring.open(stored, "d_0f3c…")          # the secret

The first key seals, all keys open. A sealed value says which key it needs, and opens only for the database on a cell
that it was sealed for. That database's name goes where the secret goes when two databases are swapped
(`directory/drafts.py`), so a swap needs no key. Without keys, secrets are stored as they are.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from plainsql_server.core.errors import InternalError

# A value is `sealed1:<key's id>:<base64 of nonce and ciphertext>`. What does not begin so is a plain secret.
SCHEME = "sealed1"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_ID_BYTES = 4


class Keyring:
    """The keys of this process."""

    def __init__(self, keys: Sequence[bytes] = (), *, refuses_unsealed: bool = False) -> None:
        self._ciphers = {key_id(key): AESGCM(key) for key in keys}
        self.refuses_unsealed = refuses_unsealed
        """Whether a secret that is not sealed counts as forged."""

    @classmethod
    def of(cls, text: str | None, *, refuses_unsealed: bool = False) -> "Keyring":
        """The keys in a setting: base64, separated by white space."""
        return cls([base64.b64decode(key) for key in (text or "").split()], refuses_unsealed=refuses_unsealed)

    @property
    def key_ids(self) -> list[str]:
        """The ids of the keys. The first one seals."""
        return list(self._ciphers)

    def new(self, engine_name: str) -> str:
        """A new secret for a database on a cell, as it is stored."""
        return self.seal(secrets.token_hex(_KEY_BYTES), engine_name)

    def seal(self, secret: str, engine_name: str) -> str:
        """The secret as it is stored: sealed with the first key, or as it is if there is none."""
        if not self._ciphers:
            return secret
        id_, cipher = next(iter(self._ciphers.items()))
        nonce = os.urandom(_NONCE_BYTES)
        sealed = cipher.encrypt(nonce, secret.encode(), _bound_to(id_, engine_name))
        return f"{SCHEME}:{id_}:{base64.b64encode(nonce + sealed).decode()}"

    def can_open(self, stored: str) -> bool:
        """Whether this process has the key of a stored secret, or accepts one that is not sealed."""
        id_ = sealed_under(stored)
        return not self.refuses_unsealed if id_ is None else id_ in self._ciphers

    def open(self, stored: str, engine_name: str) -> str:
        """The secret. Raises InternalError if its key is missing, or if it was changed or is another database's."""
        id_ = sealed_under(stored)
        if id_ is None:
            if self.refuses_unsealed:
                raise _unusable(engine_name, "is not sealed, and PLAINSQL_UNSEALED_SECRETS refuses that")
            return stored
        cipher = self._ciphers.get(id_)
        if cipher is None:
            raise _unusable(engine_name, f"is sealed with the key {id_}, which PLAINSQL_SECRETS_KEYS does not contain")
        try:
            content = base64.b64decode(stored.split(":", 2)[2], validate=True)
            opened = cipher.decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], _bound_to(id_, engine_name))
        except (ValueError, IndexError, InvalidTag):
            raise _unusable(engine_name, "was changed in the directory, or is another database's") from None
        return opened.decode()


class StoredSecret(NamedTuple):
    """A secret as the directory stores it. It is opened when it is needed, because most requests need none."""

    keyring: Keyring
    stored: str
    engine_name: str

    def open(self) -> str:
        """The secret. Raises what `Keyring.open` raises."""
        return self.keyring.open(self.stored, self.engine_name)


def new_key() -> str:
    """A random key for PLAINSQL_SECRETS_KEYS."""
    return base64.b64encode(os.urandom(_KEY_BYTES)).decode()


def key_id(key: bytes) -> str:
    """What a key is called in sealed values and messages. It says nothing about the key."""
    return hashlib.blake2b(key, digest_size=_ID_BYTES, person=b"plainsql key id").hexdigest()


def sealed_under(stored: str) -> str | None:
    """The id of the key that a stored secret needs; None for a plain one."""
    scheme, _, rest = stored.partition(":")
    return rest.partition(":")[0] if scheme == SCHEME else None


def _bound_to(id_: str, engine_name: str) -> bytes:
    return f"{SCHEME}:{id_}:{engine_name}".encode()


def _unusable(engine_name: str, why: str) -> InternalError:
    return InternalError(f"the record secret of {engine_name} {why}")
