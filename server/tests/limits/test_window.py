import random

import pytest

from plainsql_server.limits.window import Ledger, Window

pytestmark = pytest.mark.unit


def test_a_minute_is_counted_in_slots_of_600_ms() -> None:
    minute = Window(60_000)
    assert (minute.slot_ms, minute.life_s, minute.counted_slots) == (600, 0.6, 102)


@pytest.mark.parametrize("length_ms", [1, 99, 100, 1_000, 2_050, 60_000])
def test_a_permit_counts_at_least_a_window_and_its_life_after_its_slot_ends(length_ms: int) -> None:
    window = Window(length_ms)
    assert (window.counted_slots - 1) * window.slot_ms >= length_ms + window.life_s * 1000


def test_a_granted_permit_stops_counting_after_a_window_and_at_most_two_slots() -> None:
    ledger = Ledger(Window(1_000))
    ledger.add(3, now_s=10.0)
    assert ledger.used(11.019) == 3
    assert ledger.used(11.020) == 0


def test_the_next_permit_is_available_when_the_oldest_stops_counting() -> None:
    ledger = Ledger(Window(1_000))
    assert ledger.next_back_s(10.0) == 1.0
    ledger.add(1, now_s=10.0)
    ledger.add(1, now_s=10.5)
    assert ledger.next_back_s(10.6) == pytest.approx(0.42)
    assert ledger.used(10.0 + 1.02) == 1


def test_no_window_of_time_sees_more_uses_than_the_limit_however_late_permits_are_used() -> None:
    rng = random.Random(7)
    window, limit = Window(1_000), 20
    ledger, now_s, uses = Ledger(window), 0.0, list[float]()
    for _ in range(5_000):
        now_s += rng.expovariate(60)
        if ledger.used(now_s) < limit:
            ledger.add(1, now_s)
            uses.append(now_s + rng.uniform(0, window.life_s))
    uses.sort()
    assert len(uses) > 1_000
    assert all(uses[i + limit] - uses[i] >= 1.0 for i in range(len(uses) - limit))
