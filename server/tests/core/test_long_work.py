"""Work on a thread: what it returns or raises reaches the caller, and the loop runs meanwhile."""

import asyncio
import gc
import sys
import threading
import weakref

import pytest

from plainsql_server.core.long_work import ENCODING, PARSING, favour_loop, run

pytestmark = pytest.mark.unit


async def test_what_it_returns_or_raises_reaches_the_caller() -> None:
    assert await run(ENCODING, "a", divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run(ENCODING, "a", divmod, 7, 0)


async def test_each_kind_has_one_thread_which_is_not_the_loops() -> None:
    names = [
        await asyncio.gather(*(run(kind, "a", threading.get_ident) for _ in range(4))) for kind in (PARSING, ENCODING)
    ]
    assert len({each for kind in names for each in kind} | {threading.get_ident()}) == 3


async def test_a_job_goes_on_when_its_caller_is_cancelled() -> None:
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)
        done.set()

    caller = asyncio.create_task(run(PARSING, "a", work))
    assert await asyncio.to_thread(begun.wait, 30)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not done.is_set()
    may_end.set()
    # The thread is free again.
    assert await run(PARSING, "a", done.is_set)


class LongResult:
    """What a job needs."""


async def test_what_a_job_needs_is_freed_when_its_caller_is_cancelled_before_it_begins() -> None:
    begun, may_end, calls = threading.Event(), threading.Event(), list[object]()

    def work() -> None:
        begun.set()
        may_end.wait(30)

    first = asyncio.create_task(run(PARSING, "a", work))
    assert await asyncio.to_thread(begun.wait, 30)
    result = LongResult()
    freed, waiting = weakref.ref(result), asyncio.create_task(run(PARSING, "a", calls.append, result))
    del result
    # It is in the queue.
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    del waiting
    # The event loop passes the cancel on to the thread's future.
    await asyncio.sleep(0)
    gc.collect()
    assert freed() is None
    may_end.set()
    await first
    assert await run(PARSING, "a", calls.copy) == []


async def test_what_a_job_needed_and_made_is_freed_with_its_caller() -> None:
    freed = list["weakref.ref[LongResult]"]()

    def work(needed: LongResult) -> LongResult:
        made = LongResult()
        freed.extend(map(weakref.ref, (needed, made)))
        return made

    # The service collects garbage seldom: it would keep results of many megabytes until then.
    gc.disable()
    try:
        await run(PARSING, "a", work, LongResult())
        # The thread lets go of the job when it begins the next one.
        await run(PARSING, "a", int)
        assert [each() for each in freed] == [None, None]
    finally:
        gc.enable()


async def finished_in_order(*organizations: str, arriving: str) -> list[str]:
    """The order in which jobs are done. `arriving` comes last, while the first of `organizations` runs."""
    begun, may_end, done = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        may_end.wait(30)
        done.append(organizations[0])

    jobs = [asyncio.create_task(run(ENCODING, organizations[0], first))]
    assert await asyncio.to_thread(begun.wait, 30)
    jobs += [asyncio.create_task(run(ENCODING, each, done.append, each)) for each in (*organizations[1:], arriving)]
    # All of them are in the queue.
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*jobs)
    return done


async def test_a_job_waits_for_one_job_of_another_organization_at_most() -> None:
    done = await finished_in_order(*["hostile"] * 50, arriving="quiet")
    assert done == ["hostile", "quiet", *["hostile"] * 49]


async def test_jobs_of_organizations_alternate() -> None:
    done = await finished_in_order("a", "a", "a", "b", "b", "b", arriving="c")
    assert done == ["a", "b", "c", "a", "b", "a", "b"]


async def test_a_job_whose_caller_left_does_not_count() -> None:
    done, may_begin = list[str](), threading.Event()
    blocking = asyncio.create_task(run(ENCODING, "x", may_begin.wait, 30))
    gone, *others = [asyncio.create_task(run(ENCODING, each, done.append, each)) for each in ("b", "b", "c")]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    # The event loop passes the cancel on to the thread's future.
    await asyncio.sleep(0)
    may_begin.set()
    await asyncio.gather(blocking, *others)
    assert done == ["b", "c"]


async def test_an_organization_that_always_has_one_more_job_does_not_keep_others_waiting() -> None:
    done = list[str]()

    async def one_after_the_other(organization: str) -> None:
        for _ in range(5):
            await run(ENCODING, organization, done.append, organization)

    may_begin = threading.Event()
    blocking = asyncio.create_task(run(ENCODING, "x", may_begin.wait, 30))
    waiting = [asyncio.create_task(run(ENCODING, "many", done.append, "many")) for _ in range(5)]
    again = asyncio.create_task(one_after_the_other("again"))
    await asyncio.sleep(0)
    may_begin.set()
    await asyncio.gather(blocking, *waiting, again)
    assert done[:2] == ["many", "again"]
    assert sorted(done) == ["again"] * 5 + ["many"] * 5


def test_a_thread_gives_the_interpreter_back_soon() -> None:
    before_s = sys.getswitchinterval()
    try:
        favour_loop()
        assert sys.getswitchinterval() < before_s
    finally:
        sys.setswitchinterval(before_s)
