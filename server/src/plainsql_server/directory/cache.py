"""A small memory of look-ups: each answer is trusted for a stated time, and asked for once at a time.

Owns ages and the joining of equal questions. Refuses to know what is looked up. An error is never kept.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

# Entries are some hundred bytes: this bounds a node's memory whatever is asked for.
_MAX_ENTRIES = 100_000


class Cache(Generic[Key, Value]):
    """Remembers what `look_up` answered, None included, for `trusted_ms`."""

    def __init__(self, look_up: Callable[[Key], Awaitable[Value]], trusted_ms: int) -> None:
        self._look_up = look_up
        self._trusted_s = trusted_ms / 1000
        self._kept: dict[Key, tuple[float, Value]] = {}
        self._asking: dict[Key, asyncio.Task[Value]] = {}

    def remembered(self, key: Key) -> Value | None:
        """What is remembered and still trusted, else None: then `get` must say."""
        kept = self._kept.get(key)
        return None if kept is None or kept[0] < time.monotonic() else kept[1]

    async def get(self, key: Key) -> Value:
        """The answer, remembered or fresh. Raises what the look-up raises; cancelling one caller harms no other."""
        kept = self._kept.get(key)
        if kept is not None and kept[0] >= time.monotonic():
            return kept[1]
        # Those who ask the same at the same time share one look-up.
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _ask(self, key: Key) -> Value:
        value = await self._look_up(key)
        if len(self._kept) >= _MAX_ENTRIES:
            self._kept.clear()
        self._kept[key] = (time.monotonic() + self._trusted_s, value)
        return value
