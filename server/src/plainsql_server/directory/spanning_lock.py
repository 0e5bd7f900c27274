"""Word that an organization's turn to span databases is free, from the directory to whoever waits for it.

Owns the waiting in this process. The word may be lost with the connection that brings it (`channel.py`), so that
whoever waits looks for itself now and then. Refuses to know whose turn it is; the directory does.
"""

import asyncio


class SpanningNotifier:
    """Those in this process who wait, one of each organization."""

    def __init__(self) -> None:
        self._words: dict[str, asyncio.Event] = {}

    def announce(self, organization_id: str) -> None:
        """Tells whoever waits for this organization's turn."""
        word = self._words.get(organization_id)
        if word is not None:
            word.set()

    def expect(self, organization_id: str) -> asyncio.Event:
        """The event that stands for the word, until `forget`. To be cleared before the directory is asked."""
        return self._words.setdefault(organization_id, asyncio.Event())

    def forget(self, organization_id: str) -> None:
        self._words.pop(organization_id, None)
