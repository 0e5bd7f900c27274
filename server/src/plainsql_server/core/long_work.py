"""Threads for work that would hold the event loop for too long: parsing and encoding long results.

    rows = await run(ENCODING, renderer.render_long, result)

The work releases the GIL for most of its time. Each kind of work has one thread, so that many long results together
take at most two processors' time from others. A job that has begun can't be stopped: if its caller is cancelled, it
still runs to its end, and keeps what it needs alive until then.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Made = TypeVar("_Made")

# Results larger than this are parsed and encoded on a thread. Below, that takes a fraction of a millisecond, which is
# about what it takes to have a thread do it.
LONG_BYTES = 256 * 1024
# How long a thread keeps the GIL while another one wants it. Python's own choice is 5 ms, which the event loop would
# wait each time that it wakes up.
_SWITCH_INTERVAL_S = 0.0005

# A thread starts with its first job.
PARSING = ThreadPoolExecutor(1, "plainsql-parsing")
ENCODING = ThreadPoolExecutor(1, "plainsql-encoding")


def favour_loop() -> None:
    """Makes threads give the interpreter back soon. Call it once, when the process starts."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


async def run(thread: ThreadPoolExecutor, function: Callable[..., _Made], *arguments: object) -> _Made:
    """Calls a function on one of the threads. Returns its result, or raises its exception."""
    return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)
