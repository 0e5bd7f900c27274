"""Work on a thread: what it returns or raises reaches the caller, and the loop runs meanwhile."""

import asyncio
import sys
import threading

import pytest

from plainsql_server.core.long_work import ENCODING, PARSING, favour_loop, run

pytestmark = pytest.mark.unit


async def test_what_it_returns_or_raises_reaches_the_caller() -> None:
    assert await run(ENCODING, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run(ENCODING, divmod, 7, 0)


async def test_each_kind_has_one_thread_which_is_not_the_loops() -> None:
    names = [await asyncio.gather(*(run(kind, threading.get_ident) for _ in range(4))) for kind in (PARSING, ENCODING)]
    assert len({each for kind in names for each in kind} | {threading.get_ident()}) == 3


async def test_a_job_goes_on_when_its_caller_is_cancelled() -> None:
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)
        done.set()

    caller = asyncio.create_task(run(PARSING, work))
    assert await asyncio.to_thread(begun.wait, 30)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not done.is_set()
    may_end.set()
    # The thread is free again.
    assert await run(PARSING, done.is_set)


def test_a_thread_gives_the_interpreter_back_soon() -> None:
    before_s = sys.getswitchinterval()
    try:
        favour_loop()
        assert sys.getswitchinterval() < before_s
    finally:
        sys.setswitchinterval(before_s)
