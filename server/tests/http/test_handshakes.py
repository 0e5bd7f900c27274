"""How many TLS handshakes are under way: the oldest ones make way, and what failed is counted and reported."""

import asyncio

import pytest

from plainsql_server.core.observation import FailureObserved, Observation
from plainsql_server.http.server.accepting.handshakes import Handshakes

pytestmark = pytest.mark.unit


class Silent:
    """A connection that says nothing."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.address = address
        self.is_closed = False

    def shutdown(self) -> None:
        self.is_closed = True


def begun(handshakes: Handshakes, *addresses: str) -> list[Silent]:
    silent = [Silent(address) for address in addresses]
    for each in silent:
        handshakes.begin(each)
    return silent


def test_the_oldest_one_of_the_address_with_the_most_makes_way() -> None:
    handshakes = Handshakes(0, total=4)
    silent = begun(handshakes, "b", "a", "a", "a", "c", "d")
    assert [each.is_closed for each in silent] == [False, True, True, False, False, False]
    assert handshakes.load().under_way == 4
    assert handshakes.failed == {"process": 2}


def test_an_address_makes_way_for_itself_only() -> None:
    handshakes = Handshakes(2, total=10)
    silent = begun(handshakes, "a", "b", "a", "a", "b", "a")
    assert [each.is_closed for each in silent] == [True, False, True, False, False, False]
    assert handshakes.failed == {"address": 2}


def test_one_that_has_ended_counts_no_longer() -> None:
    handshakes = Handshakes(1, total=2)
    for _ in range(5):
        (each,) = begun(handshakes, "a")
        handshakes.end(each)
        handshakes.end(each)
    assert handshakes.load().under_way == 0
    assert not handshakes.failed


async def test_failures_are_reported_together() -> None:
    handshakes, seen = Handshakes(0, 10), list[Observation]()
    reporting = asyncio.create_task(handshakes.report(seen.append, every_s=0.01))
    for count in (3, 4):
        handshakes.failed["timeout"] += count
        handshakes.failed["refused"] += 1
        async with asyncio.timeout(30):
            while len(seen) < count - 2:  # noqa: ASYNC110  # the report has no event
                await asyncio.sleep(0.001)
    reporting.cancel()
    texts = [each.context for each in seen if isinstance(each, FailureObserved)]
    assert texts == ["TLS handshakes: 3 took too long", "TLS handshakes: 4 took too long"]
