"""Slots that are needed several at once: all or none, so that requests never wait for each other in a circle."""

import asyncio

import pytest

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError
from plainsql_server.engine.pool.reservation import Reservations

pytestmark = pytest.mark.unit

SOON_MS = 50


async def test_at_most_half_of_the_slots_can_be_reserved() -> None:
    reservations = Reservations(8)
    await reservations.take(3, Deadline.after_ms(SOON_MS))
    with pytest.raises(LimitError) as refused:
        await reservations.take(2, Deadline.after_ms(SOON_MS))
    assert refused.value.code == "overloaded"
    await reservations.take(1, Deadline.after_ms(SOON_MS))


async def test_a_waiting_reservation_is_granted_at_once_when_enough_slots_are_free() -> None:
    reservations = Reservations(8)
    await reservations.take(2, Deadline.after_ms(SOON_MS))
    await reservations.take(2, Deadline.after_ms(SOON_MS))
    waiting = asyncio.create_task(reservations.take(3, Deadline.after_ms(5_000)))
    await asyncio.sleep(0)
    reservations.release(2)
    # It waits for a third, and what is free is there for others.
    await reservations.take(2, Deadline.after_ms(SOON_MS))
    assert not waiting.done()
    reservations.release(2)
    reservations.release(2)
    await waiting
    await reservations.take(1, Deadline.after_ms(SOON_MS))


async def test_a_cancelled_waiter_takes_no_slot() -> None:
    reservations = Reservations(4)
    await reservations.take(2, Deadline.after_ms(SOON_MS))
    waiting = asyncio.create_task(reservations.take(2, Deadline.after_ms(5_000)))
    await asyncio.sleep(0)
    waiting.cancel()
    reservations.release(2)
    await asyncio.wait([waiting])
    await reservations.take(2, Deadline.after_ms(SOON_MS))


async def test_a_cell_with_one_slot_reserves_one_at_a_time() -> None:
    reservations = Reservations(1)
    await reservations.take(1, Deadline.after_ms(SOON_MS))
    with pytest.raises(LimitError):
        await reservations.take(1, Deadline.after_ms(SOON_MS))
