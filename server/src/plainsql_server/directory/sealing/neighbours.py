"""Refuses to store a plain secret in a directory whose other secrets are sealed.

await check_can_seal(connection, directory.secrets)
"""

from plainsql_server.core.errors import ConflictError
from plainsql_server.directory.connection import DirectoryConnection
from plainsql_server.directory.sealing.keyring import SCHEME, Keyring


async def check_can_seal(connection: DirectoryConnection, keyring: Keyring) -> None:
    """Raises ConflictError if this process has no key, and any secret in the directory is sealed.

    Planes that refuse unsealed secrets could not use the new one.
    """
    if keyring.key_ids:
        return
    sealed = await connection.execute(
        "SELECT FROM databases WHERE starts_with(record_secret, %s) LIMIT 1", (f"{SCHEME}:",)
    )
    if sealed.rowcount:
        raise ConflictError(
            "secrets_key_missing",
            "The secrets in the directory are sealed, and PLAINSQL_SECRETS_KEYS is not set here.",
            hint="Set PLAINSQL_SECRETS_KEYS or PLAINSQL_SECRETS_KEYS_FILE to the keys that the planes have.",
        )
