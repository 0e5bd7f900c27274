"""Ending background tasks, and waits that must not end early.

    task = asyncio.create_task(work())
    …
    await end(task)

One `task.cancel()` may be lost. Before Python 3.12, `asyncio.wait_for` drops a cancellation that arrives together with
the result; and if a connection breaks while its query is cancelled, psycopg raises the connection's error instead. A
loop that catches errors and tries again would then run on, and a shutdown that waits for it would never end.
"""

import asyncio
from typing import Any

# Long enough for a task to roll back and to close its connections, and less than `dev` waits before it kills.
_CANCEL_AGAIN_S = 1.0


async def sleep_through(seconds: float) -> None:
    """Sleeps for so long even if it is cancelled meanwhile, and is cancelled at the end then."""
    sleeping = asyncio.ensure_future(asyncio.sleep(seconds))
    cancelled: asyncio.CancelledError | None = None
    while not sleeping.done():
        try:
            await asyncio.wait([sleeping])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels the tasks, again and again, until all of them have ended. Their errors are not raised.

    If the caller is cancelled meanwhile, the tasks are cancelled again at once, and the caller when they have ended.
    """
    running = {task for task in tasks if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while running:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
        except asyncio.CancelledError as error:
            cancelled = error
        running = {task for task in running if not task.done()}
    if cancelled is not None:
        raise cancelled
