"""What is restored ends when too little of the disk is free, whatever it does at that moment."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from plainsql_server.core.errors import RequestError
from plainsql_server.operations.point_in_time import free_space
from plainsql_server.operations.point_in_time.free_space import keeping_free

_TOO_MUCH_BYTES = 2**60
_LONG_S = 5.0


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the disk were full from now on."""
    monkeypatch.setattr(free_space, "_FREE_LEAST_BYTES", _TOO_MUCH_BYTES)


def pending() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_nothing_begins_on_a_disk_that_is_too_full(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="must stay free"):
        async with keeping_free(tmp_path, 1.0):
            pytest.fail("it has begun")


@pytest.mark.parametrize("raised", [None, ValueError])
async def test_a_block_ends_as_soon_as_the_disk_is_too_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[Exception] | None
) -> None:
    """Also if what is cancelled raises another error instead."""

    async def fill_up() -> None:
        async with keeping_free(tmp_path, 0):
            fill(monkeypatch)
            try:
                await asyncio.sleep(_LONG_S)
            except asyncio.CancelledError:
                if raised is not None:
                    raise raised from None
                raise

    with pytest.raises(RequestError, match="must stay free") as refused:
        await fill_up()
    assert (refused.value.code, pending()) == ("no_space", 0)
    await asyncio.sleep(0)


async def test_what_is_cancelled_once_more_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a driver that has lost the first cancellation."""
    monkeypatch.setattr(free_space, "_CANCEL_AGAIN_S", 0.1)

    async def lose_some() -> None:
        async with keeping_free(tmp_path, 0):
            fill(monkeypatch)
            for _ in range(2):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(_LONG_S)
            await asyncio.sleep(_LONG_S)

    with pytest.raises(RequestError, match="must stay free"):
        await lose_some()
    assert pending() == 0


async def test_a_cancellation_that_a_block_has_lost_is_not_left_to_a_timeout_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_one() -> None:
        async with asyncio.timeout(None) as limit:
            async with keeping_free(tmp_path, 0):
                fill(monkeypatch)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(_LONG_S)
            limit.reschedule(0)
            await asyncio.sleep(_LONG_S)

    # It would be a cancellation if the timeout found another one than its own.
    with pytest.raises(TimeoutError):
        await lose_one()
    assert pending() == 0


@pytest.mark.parametrize("is_full", [False, True])
async def test_what_others_cancel_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with keeping_free(tmp_path, 0):
            begun.set()
            try:
                await asyncio.sleep(_LONG_S)
            finally:
                if is_full:
                    fill(monkeypatch)
                    await asyncio.sleep(0.3)

    working = asyncio.create_task(work())
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_an_error_of_the_block_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="own"):
        async with keeping_free(tmp_path, 0):
            raise ValueError("own")
