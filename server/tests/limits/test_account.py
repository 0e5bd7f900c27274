"""What an organization's leases allow in one process, by a clock that the tests set."""

import pytest

from plainsql_server.limits.account import PermitAccount
from plainsql_server.limits.permits import MINUTE

pytestmark = pytest.mark.unit


@pytest.fixture
def account() -> PermitAccount:
    return PermitAccount("org_1", 1000, MINUTE)


def test_a_lease_grants_its_permits_until_it_expires(account: PermitAccount) -> None:
    account.lease(3, 10.0, slot=7)
    assert account.take_held(9.9)
    assert not account.take_held(10.0)
    assert (account.held, account.used) == (2, 1)


def test_what_is_left_of_an_expired_lease_is_returned(account: PermitAccount) -> None:
    account.lease(3, 10.0, slot=7)
    assert account.take_held(9.9)
    assert account.ask(10.0).returned == ((7, 2),)
    assert account.held == 0


def test_the_next_lease_is_used_once_the_first_has_expired(account: PermitAccount) -> None:
    account.lease(3, 10.0, slot=7)
    account.lease(2, 20.0, slot=8)
    assert account.take_held(10.0)
    assert (account.held, account.slot, account.expires_s) == (1, 8, 20.0)
    assert account.ask(10.0).returned == ((7, 3),)


def test_of_two_expired_leases_neither_is_used(account: PermitAccount) -> None:
    account.lease(3, 10.0, slot=7)
    account.lease(2, 20.0, slot=8)
    assert not account.take_held(20.0)
    assert sorted(account.ask(20.0).returned) == [(7, 3), (8, 2)]
