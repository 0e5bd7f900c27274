"""When work that the engine refused for others' sake is tried again.

Owns the number of attempts and the waiting between them. Nothing was sent to the caller yet and the engine
has rolled back, so that trying again is invisible. Refuses to know what is tried.

Two requests that are tried again at once would meet again. So those of one pool go through a lane, one
after the other, and a request waits there at most for its backoff: alone it is tried again at once, in a
crowd the crowd is taken apart, and a long transaction in the lane holds nobody up for long.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import ServiceError, StatementError
from plainsql_server.engine.connection.sqlstate import SHORTAGE

DEFAULT_RETRIES = 50
MAX_RETRIES = 100

# Longer than most transactions take, so that the lane does its work; doubled each time, for the few that meet again.
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
# Where what all tenants share is full, waiting helps and haste does not: it is over when the reaper has looked, every
# second. Few attempts, because this request may be what fills it.
_SHORTAGE_BACKOFF_S = 1.0
_SHORTAGE_RETRIES = 4


class Retries:
    """The attempts at one piece of work."""

    def __init__(self, lane: asyncio.Lock, max_retries: int, deadline: Deadline, *, attempts: int = 0) -> None:
        self._lane = lane
        self._max_retries = max_retries
        self._deadline = deadline
        self.attempts = attempts
        self._shortages = 0
        self._pause_s = 0.0

    def allow(self, error: ServiceError) -> bool:
        """Whether the work that failed so is to be tried again."""
        # Being refused for others' sake is what the engine says of a statement. What is overloaded, away or
        # another's at the moment is told at once: to wait for that is the caller's choice.
        is_conflict = isinstance(error, StatementError) and error.retryable
        if is_conflict and error.diagnosis.sqlstate == SHORTAGE:
            self._shortages += 1
            self._pause_s = min(_SHORTAGE_BACKOFF_S * random.uniform(0.5, 1.0), self._deadline.left_s())
        is_worth_it = self._shortages <= _SHORTAGE_RETRIES and self.attempts <= self._max_retries
        return is_conflict and is_worth_it and self._deadline.left_s() > 0

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Waits until it is time for the next attempt, which happens inside."""
        self.attempts += 1
        if self.attempts == 1:
            yield
            return
        if self._pause_s:
            pause_s, self._pause_s = self._pause_s, 0.0
            await asyncio.sleep(pause_s)
        has_lane = await self._waited_for_lane()
        try:
            yield
        finally:
            if has_lane:
                self._lane.release()

    async def _waited_for_lane(self) -> bool:
        """Whether the lane became free before the backoff was over."""
        longest_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (self.attempts - 2))
        backoff_s = min(longest_s * random.uniform(0.5, 1.0), self._deadline.left_s())
        try:
            async with asyncio.timeout(backoff_s):
                await self._lane.acquire()
        except TimeoutError:
            return False
        return True
