"""The lane takes a permit as `Permits.take_now` does, whatever the state of the organization's lease."""

import time
from fractions import Fraction
from itertools import product
from math import ceil

import pytest

from plainsql_server.core.observation import Observation
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.rate_limit import rate_headers
from plainsql_server.limits.account import PermitAccount
from plainsql_server.limits.permits import MINUTE, Permits, PermitSource

if COMPILED:
    from plainsql_server.lane.permit import permit_of

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

LIMIT = 6000
PRINCIPAL = Principal("org_1", "key_1", "standard", frozenset([Scope.WRITE]))
# Far enough from now that no moment of a test passes them.
PAST_S, FUTURE_S = -1000.0, 1000.5

# Permits held and how long they live, at how many the next lease is requested, how long that one lives, whether it is
# being requested, and the source of permits.
State = tuple[int, float, int, float | None, bool, PermitSource]


def ignore(_: Observation) -> None:
    pass


class Side:
    """The permits of a process whose organization has a lease in a given state."""

    def __init__(self, state: State) -> None:
        held, life_s, refill_at, next_life_s, is_asking, source = state
        now_s = time.monotonic()
        self.permits = Permits(ignore, Fraction(1, 2))
        self.permits.state = source
        self.account = self.permits.accounts["org_1"] = PermitAccount("org_1", LIMIT, MINUTE)
        self.account.held, self.account.expires_s, self.account.slot = held, now_s + life_s, 7
        self.account.refill_at, self.account.is_asking = refill_at, is_asking
        self.account.next_lease = None if next_life_s is None else (2, now_s + next_life_s, 8)
        self.account.left, self.account.more_at_s = 40, now_s + 20.5

    def state(self) -> tuple[object, ...]:
        account = self.account
        return (
            account.held, account.slot, account.used, account.is_asking, account.next_lease is None,
            account.returned, account.untold, list(self.permits._asking) == [account],
        )  # fmt: skip


STATES: list[State] = list(
    product((0, 1, 2, 5), (PAST_S, FUTURE_S), (-1, 1, 4), (None, PAST_S, FUTURE_S), (False, True), PermitSource)
)


def test_a_permit_is_taken_as_the_ordinary_path_takes_it() -> None:
    granted = 0
    for state in STATES:
        lane, ordinary = Side(state), Side(state)
        permit = permit_of(lane.permits, PRINCIPAL, LIMIT)
        expected = ordinary.permits.take_now("org_1", LIMIT)
        assert lane.state() == ordinary.state(), state
        assert (permit is None) == (expected is None), state
        if permit is not None and expected is not None:
            granted += 1
            assert (permit.left, ceil(permit.wait_s)) == (expected.left, ceil(expected.wait_s)), state
            headers = rate_headers("standard", expected)
            assert permit.lines == b"".join(b"%b: %b\r\n" % header for header in headers)
    assert 0 < granted < len(STATES)


def test_an_organization_that_is_not_known_has_no_lease() -> None:
    permits = Permits(ignore, Fraction(1, 2))
    permits.state = PermitSource.SHARED
    assert permit_of(permits, PRINCIPAL, LIMIT) is None
