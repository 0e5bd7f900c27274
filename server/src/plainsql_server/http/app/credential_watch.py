"""Ends a stream when its key is revoked or its session ends.

    async with watch.watched(request, principal):
        …  # cancelled with ACCESS_ENDED once the credential is no longer valid

The credential is checked again at a fixed interval, through `directory/principals.py`. While the directory is
unavailable, no credential can be revoked, so streams continue up to their time limit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.errors import AccessError, EngineError, Outcome
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.directory.principals import Principals
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.server.requests import Request

# The argument with which a stream is cancelled when its credential is no longer valid.
ACCESS_ENDED = "access ended"


class CredentialWatch:
    """Watches the credentials of running streams."""

    def __init__(self, principals: Principals, every_ms: int) -> None:
        self._principals = principals
        self._every_s = every_ms / 1000

    @asynccontextmanager
    async def watched(self, request: Request, principal: Principal) -> AsyncIterator[None]:
        """Cancels the task that runs the block, with ACCESS_ENDED, when the credential is no longer valid."""
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
        "The stream was cancelled because its API key or session was revoked or expired.",
        outcome=Outcome.ROLLED_BACK,
    )
