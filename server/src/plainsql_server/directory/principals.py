"""Who a secret stands for: the cached look-up behind every authenticated request.

Owns the judgement of a stored key: known, not expired, not revoked. Refuses to say which of these failed,
because the caller has proven nothing yet.
"""

import time

from plainsql_server.core import credential
from plainsql_server.core.clock import now
from plainsql_server.core.principal import Principal
from plainsql_server.directory import keys
from plainsql_server.directory.cache import Cache
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.keys import KeyRecord

# Some hundred bytes each: this bounds a node's memory whatever is sent to it.
_MAX_REMEMBERED = 100_000


class Principals:
    """Principals by secret, remembered for as long as a revocation may take to be noticed."""

    def __init__(self, directory: Directory, trusted_ms: int) -> None:
        self._directory = directory
        self._trusted_s = trusted_ms / 1000
        # Remembers nothing, but joins equal questions, which all come at once when an answer has become too old.
        self._by_digest: Cache[bytes, KeyRecord | None] = Cache(self._look_up, trusted_ms=0)
        # Only secrets that were found good are remembered, so that guessing fills nothing.
        self._remembered: dict[str, tuple[float, Principal]] = {}

    def remembered(self, secret: str) -> Principal | None:
        """The principal of a secret that was looked up a moment ago, else None: then `find` must say."""
        known = self._remembered.get(secret)
        return None if known is None or known[0] < time.monotonic() else known[1]

    async def find(self, secret: str) -> Principal | None:
        """The principal of a secret, or None if it is malformed, unknown, expired or revoked."""
        if not credential.is_well_formed(secret):
            return None
        record = await self._by_digest.get(credential.digest(secret))
        if record is None or record.revoked_at is not None:
            return None
        if record.expires_at is not None and record.expires_at <= now():
            return None
        principal = Principal(record.organization_id, record.id, record.tier, record.scopes, record.database_name)
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[secret] = (time.monotonic() + self._trusted_s, principal)
        return principal

    async def _look_up(self, digest: bytes) -> KeyRecord | None:
        return await keys.find_by_digest(self._directory, digest)
