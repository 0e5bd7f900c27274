"""Slots of a cell that are reserved for requests that need several at once.

A request that has some slots and waits for the rest keeps others from theirs. Slots are all alike, so an order among
databases does not help: enough such requests wait for each other forever. So a request that needs several reserves them
here first, all or none. Then it takes them from the admission queue, where no other request holds a slot and waits.
"""

import asyncio

from plainsql_server.core.clock import Deadline
from plainsql_server.engine.pool.admission_queue import overloaded


class Reservations:
    """Half of the slots of one cell, for requests that need several."""

    def __init__(self, slots: int) -> None:
        self._slots = self._free = max(1, slots // 2)
        self._waiting: set[asyncio.Future[None]] = set()

    def resize(self, slots: int) -> None:
        """Sets how many slots the cell has. If it has fewer now, none is free until enough were released."""
        before, self._slots = self._slots, max(1, slots // 2)
        self.release(self._slots - before)

    async def take(self, slots: int, deadline: Deadline) -> None:
        """Reserves slots. Raises LimitError if they do not become free in time, or never can."""
        try:
            async with asyncio.timeout(deadline.left_s()):
                while self._free < slots:
                    await self._change()
        except TimeoutError:
            raise overloaded("All slots of this cell for transactions that span databases are in use.") from None
        self._free -= slots

    def release(self, slots: int) -> None:
        self._free += slots
        for place in self._waiting:
            if not place.done():
                place.set_result(None)

    async def _change(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(place)
        try:
            await place
        finally:
            self._waiting.discard(place)
