"""Who a secret stands for: the cached look-up behind every authenticated request.

Owns the judgement of a stored key: known, not expired, not revoked. Refuses to say which of these failed,
because the caller has proven nothing yet.
"""

from plainsql_server.core import credential
from plainsql_server.core.clock import now
from plainsql_server.core.principal import Principal
from plainsql_server.directory import keys
from plainsql_server.directory.cache import Cache
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord


class Principals:
    """Principals by secret, remembered for as long as a revocation may take to be noticed."""

    def __init__(self, directory: Directory, trusted_ms: int) -> None:
        self._directory = directory
        self._by_digest: Cache[bytes, KeyRecord | None] = Cache(self._look_up, trusted_ms)

    async def find(self, secret: str) -> Principal | None:
        """The principal of a secret, or None if it is malformed, unknown, expired or revoked."""
        if not credential.is_well_formed(secret):
            return None
        record = await self._by_digest.get(credential.digest(secret))
        if record is None or record.revoked_at is not None:
            return None
        if record.expires_at is not None and record.expires_at <= now():
            return None
        return Principal(record.organization_id, record.id, record.tier, record.scopes, record.database_name)

    async def _look_up(self, digest: bytes) -> KeyRecord | None:
        return await keys.find_by_digest(self._directory, digest)
