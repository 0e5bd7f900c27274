"""Finds the principal of a secret: the cached lookup behind every authenticated request.

A secret is valid if its key or session is known, not expired and not revoked. The result does not say which of these
failed, because the caller is not authenticated. `how_it_ended` does for sessions: their holder had one that was valid.
"""

import math
import time
from typing import NamedTuple

from plainsql_server.core import credential
from plainsql_server.core.clock import now, wall_s
from plainsql_server.core.principal import Principal
from plainsql_server.directory import keys, sessions
from plainsql_server.directory.cache import Cache
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.freshness import Freshness
from plainsql_server.directory.unknown_credentials import UnknownCredentials

# Their digests and a text that they share: a few megabytes at most.
_MAX_ENDED = 10_000


class _Found(NamedTuple):
    """A valid secret: its expiry in seconds since 1970, and its principal."""

    good_until_s: float
    principal: Principal


class Principals:
    """Principals by secret, cached for as long as a revocation may take to apply."""

    def __init__(self, directory: Directory, freshness: Freshness) -> None:
        self._directory = directory
        self._freshness = freshness
        # Only valid secrets are cached, so guessing cannot fill the cache.
        self._found: Cache[str, _Found | None] = Cache(
            self._look_up, freshness, lambda _, found: None if found is None else found.principal.organization_id
        )
        self._kept = self._found.kept
        self._unknown = UnknownCredentials(freshness)
        # How sessions have ended, by digest. None of them becomes valid again.
        self._ended: dict[bytes, str] = {}

    async def find(self, secret: str) -> Principal | None:
        """The principal of a secret, or None if it is malformed, unknown, expired or revoked.

        Raises LimitError if too many new secrets are being looked up.
        """
        return self._remembered(secret) or await self._find(secret)

    def how_it_ended(self, secret: str) -> str | None:
        """What to say of a session that `find` has not found because it has ended; None for any other secret."""
        return self._ended.get(credential.digest(secret))

    def remembered(self, secret: str) -> tuple[Principal, float] | None:
        """The cached principal of a secret, and until when it is valid, unless a change is announced.

        One that expires by itself must be asked for each time.
        """
        principal = self._remembered(secret)
        if principal is None:
            return None
        looked_up_s, found = self._kept[secret]
        expires = found is not None and found.good_until_s != math.inf
        return principal, 0.0 if expires else self._freshness.valid_until_s(looked_up_s)

    def _remembered(self, secret: str) -> Principal | None:
        kept = self._kept.get(secret)
        if kept is None or kept[1] is None or not self._freshness.holds(kept[0]):
            return None
        good_until_s, principal = kept[1]
        return principal if good_until_s == math.inf or good_until_s > wall_s() else None

    async def _find(self, secret: str) -> Principal | None:
        if not credential.is_well_formed(secret):
            return None
        found = await self._found.last_known(secret) if self._freshness.unavailable else None
        found = found or await self._found.get(secret)
        if found is not None and found.good_until_s <= wall_s():
            if secret.startswith(credential.SESSION_PREFIX):
                self._note_ended(credential.digest(secret), sessions.EXPIRED)
            return None
        return None if found is None else found.principal

    async def _look_up(self, secret: str) -> _Found | None:
        digest = credential.digest(secret)
        if self._unknown.is_known(digest):
            return await self._ask(secret, digest)
        if self._unknown.is_refused(digest):
            return None
        async with self._unknown.slot():
            asked_s = time.monotonic()
            found = await self._ask(secret, digest)
        if found is None:
            self._unknown.note_refused(digest, asked_s)
        else:
            self._unknown.note_known(digest)
        return found

    async def _ask(self, secret: str, digest: bytes) -> _Found | None:
        find = sessions.find_by_digest if secret.startswith(credential.SESSION_PREFIX) else keys.find_by_digest
        record = await find(self._directory, digest)
        if record is None or not record.is_active(now()):
            if isinstance(record, sessions.SessionRecord):
                self._note_ended(digest, record.how_it_ended())
            return None
        return _Found(math.inf if record.ends_at is None else record.ends_at.timestamp(), record.principal())

    def _note_ended(self, digest: bytes, how: str) -> None:
        if len(self._ended) >= _MAX_ENDED:
            self._ended.clear()
        self._ended[digest] = how
