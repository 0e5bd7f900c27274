"""Whether who began a stream may still read it: looked at again and again while it runs.

Owns the watching, so that a revoked key or an ended session stops a stream as soon as it stops requests. Refuses to
judge a credential itself: `directory/principals.py` does. While the directory is away nobody can revoke anything, and
a stream goes on to its limit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.errors import AccessError, EngineError, Outcome
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.server.requests import Request

# The argument of the cancellation of a stream whose caller may not read it any more.
ACCESS_ENDED = "access ended"


class CredentialWatch:
    """Watches callers while they are being answered."""

    def __init__(self, principals: Principals, every_ms: int) -> None:
        self._principals = principals
        self._every_s = every_ms / 1000

    @asynccontextmanager
    async def watched(self, request: Request, principal: Principal) -> AsyncIterator[None]:
        """Cancels the task that runs the block, with ACCESS_ENDED, when the caller may not read any more."""
        task = asyncio.current_task()
        assert task is not None
        watching = asyncio.create_task(self._watch(secret_of(request), principal, task))
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self, secret: str, principal: Principal, task: "asyncio.Task[object]") -> None:
        stands = True
        while stands:
            await asyncio.sleep(self._every_s)
            stands = await self._stands(secret, principal)
        task.cancel(ACCESS_ENDED)

    async def _stands(self, secret: str, principal: Principal) -> bool:
        try:
            now = await self._principals.find(secret)
        except EngineError:
            return True
        return now is not None and now.may(Scope.READ) and now.database == principal.database


def access_ended() -> AccessError:
    return AccessError(
        "unauthenticated",
        "The API key or session was revoked or ended while its stream ran, and the stream was cancelled.",
        outcome=Outcome.ROLLED_BACK,
    )
