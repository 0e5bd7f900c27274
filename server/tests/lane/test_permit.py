"""The lane takes a permit as `Permits.take_now` does, whatever the state of the organization's lease."""

import time
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.core.observation import Observation
from plainsql_server.core.principal import Principal, Scope
from plainsql_server.core.share import Share
from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.rate_limit import rate_headers
from plainsql_server.limits.account import Permit, PermitAccount
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
        self.permits = Permits(ignore, Share.fixed(Fraction(1, 2)))
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
            assert permit.left == expected.left, state
            # The clock went on in between.
            assert abs(permit.wait_s - expected.wait_s) < 10, state
            headers = rate_headers("standard", Permit(True, permit.left, permit.wait_s))
            assert permit.lines == b"".join(b"%b: %b\r\n" % header for header in headers)
    assert 0 < granted < len(STATES)


def test_a_permit_of_a_lease_that_lasts_takes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_now(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Permits, "take_now", take_now)
    for held, is_asking in ((5, False), (4, True)):
        lane = Side((held, FUTURE_S, 3, None, is_asking, PermitSource.SHARED))
        assert permit_of(lane.permits, PRINCIPAL, LIMIT) is not None
    with pytest.raises(AssertionError):
        permit_of(Side((4, FUTURE_S, 3, None, False, PermitSource.SHARED)).permits, PRINCIPAL, LIMIT)


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([PAST_S, FUTURE_S]), st.booleans()), max_size=5))
def test_both_use_lease_after_lease_to_its_end(leases: list[tuple[int, float, bool]]) -> None:
    """Leases come when there is a request for one, or late; some have expired when they come."""
    start: State = (3, FUTURE_S, 1, None, False, PermitSource.SHARED)
    lane, ordinary = Side(start), Side(start)
    for permits, life_s, is_late in [*leases, (2, FUTURE_S, True)]:
        for _ in range(10 if is_late else 2):
            permit, expected = permit_of(lane.permits, PRINCIPAL, LIMIT), ordinary.permits.take_now("org_1", LIMIT)
            assert (permit and permit.left) == (expected and expected.left)
            assert lane.state() == ordinary.state()
        if lane.account.next_lease is None:
            for side in (lane, ordinary):
                side.permits._asking.clear()
                side.account.is_asking = False
                side.account.lease(permits, time.monotonic() + life_s, 9)


def test_an_organization_that_is_not_known_has_no_lease() -> None:
    permits = Permits(ignore, Share.fixed(Fraction(1, 2)))
    permits.state = PermitSource.SHARED
    assert permit_of(permits, PRINCIPAL, LIMIT) is None
