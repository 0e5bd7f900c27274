"""Slots of a cell that are reserved for requests that need several at once.

A request that has some slots and waits for the rest keeps others from theirs. Slots are all alike, so an order among
databases does not help: enough such requests wait for each other forever. So a request that needs several reserves them
here first, all or none, and then takes them from the admission queue, where no other request holds a slot while it waits.
"""

import asyncio

from plainsql_server.core.clock import Deadline
from plainsql_server.engine.pool.admission_queue import overloaded


class Allotment:
    """Half of the turns of one cell."""

    def __init__(self, turns: int) -> None:
        self._free = max(1, turns // 2)
        self._waiting: set[asyncio.Future[None]] = set()

    async def take(self, turns: int, deadline: Deadline) -> None:
        """Sets so many turns aside. Raises LimitError when they are not free in time, or never can be."""
        try:
            async with asyncio.timeout(deadline.left_s()):
                while self._free < turns:
                    await self._change()
        except TimeoutError:
            raise overloaded("Transactions over several databases have all of this cell's turns for them.") from None
        self._free -= turns

    def give_back(self, turns: int) -> None:
        self._free += turns
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
