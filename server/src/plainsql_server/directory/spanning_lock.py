"""Notifies this process's waiting transactions that an organization's spanning lock is free.

The notifications come from the directory through `channel.py`. One can be lost with its connection, so waiting
transactions also poll now and then. The directory decides which transaction gets the lock.
"""

import asyncio


class SpanningNotifier:
    """The waiting transactions of this process: one event per organization."""

    def __init__(self) -> None:
        self._words: dict[str, asyncio.Event] = {}

    def announce(self, organization_id: str) -> None:
        """Notifies the transactions that wait for this organization's spanning lock."""
        word = self._words.get(organization_id)
        if word is not None:
            word.set()

    def expect(self, organization_id: str) -> asyncio.Event:
        """The event that `announce` sets, until `forget`. Clear it before you query the directory."""
        return self._words.setdefault(organization_id, asyncio.Event())

    def forget(self, organization_id: str) -> None:
        self._words.pop(organization_id, None)
