"""A small memory of look-ups: each answer is believed as long as `Freshness` says, and asked for once at a time.

Owns ages and the joining of equal questions. Refuses to know what is looked up. An error is never kept.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from plainsql_server.directory.connection import directory_away
from plainsql_server.directory.freshness import Freshness

Key = TypeVar("Key")
Value = TypeVar("Value")

# Entries are some hundred bytes: this bounds a node's memory whatever is asked for.
_MAX_ENTRIES = 100_000

# How long a request waits for a directory that seems to be away, if it has an answer to fall back on. A look-up takes
# about a millisecond.
_PATIENCE_S = 0.05

# How long it waits if it has none. One that does not answer by then may take far longer to be found out: nobody hears
# from a machine that vanished that it did.
LONGEST_S = 2.0


class Cache(Generic[Key, Value]):
    """Remembers what `look_up` answered. `organization_of` says whose changes make it forget; None: do not keep it."""

    def __init__(
        self,
        look_up: Callable[[Key], Awaitable[Value]],
        freshness: Freshness,
        organization_of: Callable[[Key, Value], str | None],
    ) -> None:
        self._look_up = look_up
        self._freshness = freshness
        self._organization_of = organization_of
        # When it was asked for, and the answer.
        self.kept: dict[Key, tuple[float, Value]] = {}
        self._keys_of: dict[str, set[Key]] = {}
        self._asking: dict[Key, asyncio.Task[Value]] = {}
        freshness.on_change(self._forget)

    def remembered(self, key: Key) -> Value | None:
        """What is remembered and still believed, else None: then `get` must say."""
        kept = self.kept.get(key)
        return None if kept is None or not self._freshness.holds(kept[0]) else kept[1]

    async def get(self, key: Key, within_s: float = LONGEST_S) -> Value:
        """The answer, remembered or fresh. Raises what the look-up raises, or EngineError when it takes too long.

        A look-up goes on though nobody waits any more, for whoever asks next.
        """
        remembered = self.remembered(key)
        if remembered is not None:
            return remembered
        task = self._task(key)
        await asyncio.wait([task], timeout=within_s)
        if not task.done():
            raise directory_away("directory: no answer in time")
        return task.result()

    async def last_known(self, key: Key) -> Value | None:
        """While the directory is away: what was known when it was last heard, unless a look-up works after all."""
        kept = self.kept.get(key)
        if kept is None or not self._freshness.allows_stale(kept[0]):
            return None
        task = self._task(key)
        done, _ = await asyncio.wait([task], timeout=_PATIENCE_S)
        return None if done and task.exception() is None else kept[1]

    def _task(self, key: Key) -> "asyncio.Task[Value]":
        # Those who ask the same at the same time share one look-up.
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key))
            task.add_done_callback(lambda done: self._asked(key, done))
        return task

    def _asked(self, key: Key, task: "asyncio.Task[Value]") -> None:
        del self._asking[key]
        if not task.cancelled():
            # Whoever waits gets it; this says that nobody having waited is no failure by itself.
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
