"""Long work on the event loop, cut into parts: one part of all such work runs in each iteration of the loop.

    for part in parts:
        await share_loop()
        send(part)

With `asyncio.sleep(0)` instead, every task with long work does a part in every iteration, so what the others wait for
grows with the number of such tasks. Here they do their parts in the order in which they ask, and a task that is
cancelled while it waits is skipped.
"""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class LoopShare:
    """The tasks of one event loop that wait to do a part."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Returns when the task may do its next part: at the earliest in the next iteration."""
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        self._schedule()
        await waiter

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._let_one_run)

    def _let_one_run(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            waiter = self._waiting.popleft()
            # A waiter that is done belongs to a task that was cancelled.
            if not waiter.done():
                waiter.set_result(None)
                break
        if self._waiting:
            # It does not depend on what the task does with its part.
            self._schedule()


_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = WeakKeyDictionary()


async def share_loop() -> None:
    """Lets other requests run. Returns when this task may do its next part."""
    loop = asyncio.get_running_loop()
    share = _shares.get(loop)
    if share is None:
        share = _shares[loop] = LoopShare(loop)
    await share.wait()
