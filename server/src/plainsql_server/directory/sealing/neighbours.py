"""Refuses to store a plain secret in a directory whose other secrets are sealed.

await check_can_seal(connection, directory.secrets, by)
"""

from plainsql_server.core.actor import OPERATOR, Actor
from plainsql_server.core.errors import ConflictError, EngineError, ServiceError
from plainsql_server.directory.connection import DirectoryConnection
from plainsql_server.directory.sealing.keyring import SCHEME, Keyring

_RETRY_AFTER_MS = 60_000


async def check_can_seal(connection: DirectoryConnection, keyring: Keyring, by: Actor) -> None:
    """Raises `key_missing` if secrets in the directory are sealed, and this process has none of their keys.

    Planes could not open the new one, or refuse it because it is not sealed.
    """
    cursor = await connection.execute(
        "SELECT DISTINCT split_part(record_secret, ':', 2) AS key FROM databases WHERE starts_with(record_secret, %s)",
        (f"{SCHEME}:",),
    )
    used = {str(row["key"]) for row in await cursor.fetchall()}
    if used and not used & set(keyring.key_ids):
        raise key_missing(by)


def key_missing(by: Actor) -> ServiceError:
    """The error where this process can't open a secret: for operators a conflict, for others an unavailable service.

    Customers can do nothing about it, and another control plane may have the key.
    """
    message = (
        "PLAINSQL_SECRETS_KEYS has no key for a secret in the directory, or PLAINSQL_UNSEALED_SECRETS refuses one that "
        "is not sealed."
    )
    if by.kind == OPERATOR.kind:
        hint = "Give this command the settings of the planes for both, or run `plainsql-server secrets rotate`."
        return ConflictError("secrets_key_missing", message, hint=hint)
    return EngineError(
        "creation_unavailable",
        "This server can't create databases right now.",
        retryable=True,
        retry_after_ms=_RETRY_AFTER_MS,
        internal_context=message,
    )
