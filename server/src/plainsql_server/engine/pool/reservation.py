"""How many of a cell's turns may be held by those who need several at once.

Owns that number. Who has some turns and waits for the rest keeps others from theirs, and turns are all alike, so an
order among databases does not help: enough of them wait for each other forever. So whoever needs several sets them
aside here first, all or none, and then gets them at the gate (`admission_queue.py`), where nobody else with a turn waits for more.
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
