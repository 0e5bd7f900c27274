"""Ends a stream when its key is revoked or its session ends.

    async with watch.watched(request, principal):
        …  # cancelled, for CancelReason.ACCESS_ENDED, once the credential is no longer valid

The credential is checked again at a fixed interval, through `directory/principals.py`. While the directory is
unavailable, no credential can be revoked, so streams continue up to their time limit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.clock import now
from plainsql_server.core.errors import AccessError, EngineError, LimitError, Outcome, described
from plainsql_server.core.observation import FailureObserved, Observe
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.server.channel import CancelReason
from plainsql_server.http.server.requests import Request

# How often a stream checks that its caller's key has not been revoked. It reacts at most this much later than a
# request.
_EVERY_MS = 200


class CredentialWatch:
    """Watches the credentials of running streams."""

    def __init__(self, principals: Principals, observe: Observe, every_ms: int = _EVERY_MS) -> None:
        self._principals = principals
        self._every_s = every_ms / 1000
        self._observe = observe

    @asynccontextmanager
    async def watched(self, request: Request, principal: Principal) -> AsyncIterator[None]:
        """Cancels the request, for ACCESS_ENDED, when the credential is no longer valid."""
        watching = asyncio.create_task(self._watch(request, principal))
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self, request: Request, principal: Principal) -> None:
        secret = secret_of(request)
        try:
            is_valid = True
            while is_valid:
                await asyncio.sleep(self._every_s)
                is_valid = await self._is_valid(secret, principal)
        except asyncio.CancelledError:
            # The block has ended.
            return
        except Exception as error:
            # A stream must not go on unwatched, whatever failed.
            self._observe(FailureObserved(now(), "failure", "http.credential_watch", described(error)))
        request.channel.cancel(CancelReason.ACCESS_ENDED)

    async def _is_valid(self, secret: str, principal: Principal) -> bool:
        try:
            found = await self._principals.find(secret)
        except (EngineError, LimitError):
            # The directory is unavailable, or too busy to look the credential up. Check again at the next interval.
            return True
        return found is not None and found.may(Scope.READ) and found.database == principal.database


def access_ended(outcome: Outcome) -> AccessError:
    return AccessError(
        "unauthenticated",
        "The stream was cancelled because its API key or session was revoked or expired.",
        outcome=outcome,
    )
