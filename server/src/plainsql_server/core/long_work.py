"""Threads for work that would hold the event loop for too long: parsing and encoding long results.

    rows = await run(ENCODING, organization_id, renderer.render_long, result)

The work releases the GIL for most of its time. Each kind of work has one thread, so that many long results together
take at most two processors' time from others. Organizations take turns: of those whose jobs wait, the next is the one
that has waited longest for a turn. So however many jobs one has, another one's job waits for the job that is running,
and for one of each organization that came before it. If a caller is cancelled, its job does not begin, and what it
needs, long results perhaps, is freed at once. A job that has begun can't be stopped: it runs to its end, and keeps what
it needs alive until then.
"""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, TypeVar

_Made = TypeVar("_Made")

# Results larger than this are parsed and encoded on a thread. Below, that takes a fraction of a millisecond, which is
# about what it takes to have a thread do it.
LONG_BYTES = 256 * 1024
# How long a thread keeps the GIL while another one wants it. Python's own choice is 5 ms, which the event loop would
# wait each time that it wakes up.
_SWITCH_INTERVAL_S = 0.0005


class _Job:
    """A call that waits for the thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        self.future: Future[Any] = Future()
        self._call: list[Any] = [function, arguments]
        # What it needs is freed at once when the future is cancelled, though the job stays in the queue for long. A
        # callback that knew the job would be a cycle, and keep the result until garbage is collected.
        self.future.add_done_callback(partial(_clear, self._call))

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        function, arguments = self._call
        try:
            result = function(*arguments)
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


def _clear(call: list[Any], _: "Future[Any]") -> None:
    call.clear()


class WorkThread:
    """A thread that runs the jobs of all organizations in turn. It starts with its first job."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Job]] = {}
        # The number of the last job of each organization, as long as others wait.
        self._last_jobs: dict[str, int] = {}
        self._numbers = count(1)

    def submit(
        self, organization_id: str, function: Callable[..., _Made], *arguments: object
    ) -> "asyncio.Future[_Made]":
        """Adds a job, from an event loop. The future has its result, or its exception."""
        job = _Job(function, arguments)
        with self._lock:
            self._waiting.setdefault(organization_id, deque()).append(job)
        self._executor.submit(self._run_next)
        return asyncio.wrap_future(job.future)

    def _run_next(self) -> None:
        """Runs one job. It is called once for each, but not in their order."""
        with self._lock:
            organization_id = min(self._waiting, key=self._last_job)
            jobs = self._waiting[organization_id]
            job = jobs.popleft()
            if not jobs:
                del self._waiting[organization_id]
            # One whose caller is gone is no turn.
            if not job.future.cancelled():
                self._last_jobs[organization_id] = next(self._numbers)
        job.run()
        with self._lock:
            if not self._waiting:
                self._last_jobs.clear()

    def _last_job(self, organization_id: str) -> int:
        return self._last_jobs.get(organization_id, 0)


PARSING = WorkThread("plainsql-parsing")
ENCODING = WorkThread("plainsql-encoding")


def favour_loop() -> None:
    """Makes threads give the interpreter back soon. Call it once, when the process starts."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


async def run(thread: WorkThread, organization_id: str, function: Callable[..., _Made], *arguments: object) -> _Made:
    """Calls a function on one of the threads, for an organization. Returns its result, or raises its exception."""
    return await thread.submit(organization_id, function, *arguments)
