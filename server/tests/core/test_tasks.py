"""Background tasks end, although a cancellation of them is lost; and waits that must not end early don't."""

import asyncio
import os
import signal

import psycopg
import pytest

from plainsql_server.core import tasks
from plainsql_server.core.tasks import end, sleep_through

_LIMIT_S = 60.0
_NAME = "plainsql-test-tasks"
_SLEEPING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'PgSleep'"


class Sleeping:
    """A loop like those of the service: it catches the errors of its queries and tries again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.errors: list[psycopg.Error] = []

    async def run(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._dsn, application_name=_NAME) as connection:
                    await connection.execute("SELECT pg_sleep(60)")
            except psycopg.Error as error:
                self.errors.append(error)


async def sleeping_backend(admin: psycopg.AsyncConnection) -> int:
    async with asyncio.timeout(_LIMIT_S):
        while (row := await (await admin.execute(_SLEEPING, (_NAME,))).fetchone()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return int(row[0])


async def test_a_task_ends_although_its_connection_breaks_as_it_is_cancelled(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, the first cancellation must be lost before the second one comes.
    monkeypatch.setattr(tasks, "_CANCEL_AGAIN_S", 3.0)
    loop = Sleeping(dsn)
    task = asyncio.create_task(loop.run())
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        backend = await sleeping_backend(admin)
        os.kill(backend, signal.SIGSTOP)
        try:
            ending = asyncio.create_task(end(task))
            await admin.execute("SELECT pg_terminate_backend(%s)", (backend,))
            assert task.cancelling()
        finally:
            os.kill(backend, signal.SIGCONT)
        async with asyncio.timeout(_LIMIT_S):
            await ending
    assert task.cancelled()
    # If psycopg raises the cancellation one day, this test is no longer needed.
    assert [type(error) for error in loop.errors] == [psycopg.errors.AdminShutdown], "no cancellation was lost"


async def test_tasks_end_although_their_end_is_cancelled_itself() -> None:
    """As when the end of a loop ends the tasks that the loop has started."""
    lost = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost.set()
        await asyncio.sleep(60)

    inner = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end(inner))
    await lost.wait()
    ending.cancel()
    await asyncio.wait([ending], timeout=_LIMIT_S)
    assert ending.cancelled()
    assert inner.cancelled()


async def test_a_task_has_some_time_to_clean_up() -> None:
    cleaned_up = 0

    async def work() -> None:
        nonlocal cleaned_up
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            cleaned_up += 1

    working = [asyncio.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    await end(*working)
    assert all(task.cancelled() for task in working)
    assert cleaned_up == len(working)


async def test_tasks_that_have_ended_are_left_alone() -> None:
    async def fail() -> None:
        raise ValueError("theirs")

    failed = asyncio.create_task(fail())
    await asyncio.wait([failed])
    await end(failed)
    await end()
    with pytest.raises(ValueError, match="theirs"):
        failed.result()


async def test_a_wait_that_must_not_end_early_does_not_and_its_task_is_cancelled_afterwards() -> None:
    began_s = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(sleep_through(0.2))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.get_running_loop().time() - began_s >= 0.2
