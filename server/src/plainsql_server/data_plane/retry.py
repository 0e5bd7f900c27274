"""Retries work that PostgreSQL rolled back because of a conflict with other transactions.

Nothing has been sent to the caller yet, and PostgreSQL has rolled back, so a retry is invisible.

Two requests that retry at the same time would conflict again. So the retries of one pool share a lane, a lock that they
hold one after the other. A request waits for the lane no longer than its backoff. On its own, it retries at once; in a
crowd, the retries are spread out, and a long transaction in the lane does not delay others for long.
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

# Longer than most transactions take, so that waiting for the lane helps. Doubled each time, for those that keep
# conflicting.
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
# If a resource that all tenants share is exhausted, wait instead of retrying quickly: the reaper, which runs every
# second, ends the shortage. Few attempts, because this request may be its cause.
_SHORTAGE_BACKOFF_S = 1.0
_SHORTAGE_RETRIES = 4


class Retries:
    """The attempts to run one statement or transaction."""

    def __init__(self, lane: asyncio.Lock, max_retries: int, deadline: Deadline, *, attempts: int = 0) -> None:
        self._lane = lane
        self._max_retries = max_retries
        self._deadline = deadline
        self.attempts = attempts
        self._shortages = 0
        self._pause_s = 0.0

    def allow(self, error: ServiceError) -> bool:
        """Whether to retry after this error."""
        # Only conflicts reported by PostgreSQL are retried. Overload and unavailability are reported at once: whether
        # to wait is the caller's choice.
        is_conflict = isinstance(error, StatementError) and error.retryable and not error.is_stale_read
        if is_conflict and error.diagnosis.sqlstate == SHORTAGE:
            self._shortages += 1
            self._pause_s = min(_SHORTAGE_BACKOFF_S * random.uniform(0.5, 1.0), self._deadline.left_s())
        is_worth_it = self._shortages <= _SHORTAGE_RETRIES and self.attempts <= self._max_retries
        return is_conflict and is_worth_it and self._deadline.left_s() > 0

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Waits until it is time for the next attempt, which runs inside the block."""
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
        """Whether the lane became free before the backoff ended."""
        longest_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (self.attempts - 2))
        backoff_s = min(longest_s * random.uniform(0.5, 1.0), self._deadline.left_s())
        try:
            async with asyncio.timeout(backoff_s):
                await self._lane.acquire()
        except TimeoutError:
            return False
        return True
