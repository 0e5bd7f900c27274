"""Refuses to store a plain secret in a directory whose other secrets are sealed.

await check_can_seal(connection, directory.secrets)
"""

from plainsql_server.core.errors import ConflictError
from plainsql_server.directory.connection import DirectoryConnection
from plainsql_server.directory.sealing.keyring import SCHEME, Keyring


async def check_can_seal(connection: DirectoryConnection, keyring: Keyring) -> None:
    """Raises ConflictError if secrets in the directory are sealed, and this process has none of their keys.

    Planes could not open the new one, or refuse it because it is not sealed.
    """
    cursor = await connection.execute(
        "SELECT DISTINCT split_part(record_secret, ':', 2) AS key FROM databases WHERE starts_with(record_secret, %s)",
        (f"{SCHEME}:",),
    )
    used = {str(row["key"]) for row in await cursor.fetchall()}
    if used and not used & set(keyring.key_ids):
        raise ConflictError(
            "secrets_key_missing",
            "The secrets in the directory are sealed, and PLAINSQL_SECRETS_KEYS has none of their keys here.",
            hint="Set PLAINSQL_SECRETS_KEYS or PLAINSQL_SECRETS_KEYS_FILE to the keys that the planes have.",
        )
