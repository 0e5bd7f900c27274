"""A small cache of lookups. `Freshness` decides how long each is valid.

Concurrent lookups of the same key share one query. Errors are never cached.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from plainsql_server.directory.connection import directory_unavailable
from plainsql_server.directory.freshness import Freshness

Key = TypeVar("Key")
Value = TypeVar("Value")

# An entry has a few hundred bytes. This limits a node's memory, whatever is looked up.
_MAX_ENTRIES = 100_000

# How long a request waits for a directory that seems to be unavailable, if it has a cached value to fall back on. A
# lookup takes about a millisecond.
_WAIT_WITH_FALLBACK_S = 0.05

# How long it waits without a cached value. If the directory's machine has disappeared, it could take far longer until
# the connection fails.
LONGEST_S = 2.0


class Cache(Generic[Key, Value]):
    """Caches the results of `look_up`.

    `organization_of` returns the organization whose changes invalidate an entry, or None to not cache it.
    """

    def __init__(
        self,
        look_up: Callable[[Key], Awaitable[Value]],
        freshness: Freshness,
        organization_of: Callable[[Key, Value], str | None],
    ) -> None:
        self._look_up = look_up
        self._freshness = freshness
        self._organization_of = organization_of
        # The time of the lookup, and its result.
        self.kept: dict[Key, tuple[float, Value]] = {}
        self._keys_of: dict[str, set[Key]] = {}
        self._asking: dict[Key, asyncio.Task[Value]] = {}
        freshness.on_change(self._forget)

    def remembered(self, key: Key) -> Value | None:
        """The cached value if it is still valid, or None; then call `get`."""
        kept = self.kept.get(key)
        return None if kept is None or not self._freshness.holds(kept[0]) else kept[1]

    def remembered_until(self, key: Key) -> tuple[Value, float] | None:
        """The cached value if it is still valid, and until when it is at least, unless a change is announced."""
        kept = self.kept.get(key)
        if kept is None or not self._freshness.holds(kept[0]):
            return None
        return kept[1], self._freshness.valid_until_s(kept[0])

    async def get(self, key: Key, within_s: float = LONGEST_S) -> Value:
        """The value, cached or looked up. Raises the errors of the lookup, or EngineError if it takes too long.

        A lookup that takes too long continues, for the benefit of the next caller.
        """
        remembered = self.remembered(key)
        if remembered is not None:
            return remembered
        task = self._task(key)
        await asyncio.wait([task], timeout=within_s)
        if not task.done():
            raise directory_unavailable("directory: no response in time")
        return task.result()

    async def last_known(self, key: Key) -> Value | None:
        """The last known value while the directory is unavailable; None if a lookup works after all."""
        kept = self.kept.get(key)
        if kept is None or not self._freshness.allows_stale(kept[0]):
            return None
        task = self._task(key)
        done, _ = await asyncio.wait([task], timeout=_WAIT_WITH_FALLBACK_S)
        return None if done and task.exception() is None else kept[1]

    def _task(self, key: Key) -> "asyncio.Task[Value]":
        # Concurrent callers with the same key share one lookup.
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key))
            task.add_done_callback(lambda done: self._asked(key, done))
        return task

    def _asked(self, key: Key, task: "asyncio.Task[Value]") -> None:
        del self._asking[key]
        if not task.cancelled():
            # Waiting callers get the exception. Retrieve it here, too, so asyncio does not complain if there are none.
            task.exception()

    async def _ask(self, key: Key) -> Value:
        asked_s, changes = time.monotonic(), self._freshness.changes
        value = await self._look_up(key)
        organization_id = self._organization_of(key, value)
        if organization_id is not None and changes == self._freshness.changes:
            if len(self.kept) >= _MAX_ENTRIES:
                self._forget(None)
            self.kept[key] = (asked_s, value)
            self._keys_of.setdefault(organization_id, set()).add(key)
        return value

    def _forget(self, organization_id: str | None) -> None:
        if organization_id is None:
            self.kept.clear()
            self._keys_of.clear()
            return
        for key in self._keys_of.pop(organization_id, ()):
            self.kept.pop(key, None)
