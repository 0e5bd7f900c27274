"""Callers are found by exactly what they send, and forgotten when a change of their organization is announced."""

import asyncio

import pytest

from plainsql_server.core.principal import Principal, Scope
from plainsql_server.data_plane.databases import Place
from plainsql_server.engine.pool.address import Address
from plainsql_server.engine.pool.pools import PoolLimits, Pools
from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.caller import caller_of, sends
    from plainsql_server.lane.callers import MAX_CALLERS, Callers

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

KEY = b"svc_k_" + b"x" * 38


def made_callers(count: int, organization_id: str = "org_1") -> list[object]:
    return asyncio.run(_made_callers(count, organization_id))


async def _made_callers(count: int, organization_id: str) -> list[object]:
    pools = Pools(PoolLimits(1, 1, 1), 1_000, lambda _: None)
    pool = pools.for_address(Address("host=/nowhere", "d", "r"), organization_id)
    principal = Principal(organization_id, "key_1", "dedicated", frozenset([Scope.WRITE]))
    return [caller_of(principal, Place("db_1", without_code=True, address=pool.address), pool) for _ in range(count)]


def key_of(number: int) -> bytes:
    return b"svc_k_%038d" % number


def test_a_caller_is_found_by_its_own_bytes_only() -> None:
    callers, (first, second, third) = Callers(), made_callers(3)
    callers.add(first, KEY, None)
    callers.add(second, KEY, b"mine")
    callers.add(third, key_of(1), b"mine")
    sent = [(KEY, None), (KEY, b"mine"), (key_of(1), b"mine")]
    assert [callers.find(*each) for each in sent] == [first, second, third]
    assert [[sends(caller, *each) for each in sent] for caller in (first, second, third)] == [
        [True, False, False], [False, True, False], [False, False, True],
    ]  # fmt: skip
    for other in ((key_of(1), None), (KEY, b"min"), (KEY, b"mine "), (KEY, b"minf")):
        assert callers.find(*other) is None
        assert not sends(second, *other)


@pytest.mark.parametrize("at", range(len(KEY)))
def test_a_secret_that_differs_in_one_byte_is_another_callers(at: int) -> None:
    callers, (caller,) = Callers(), made_callers(1)
    callers.add(caller, KEY, None)
    for bit in range(8):
        other = bytearray(KEY)
        other[at] ^= 1 << bit
        assert not sends(caller, bytes(other), None)
        assert callers.find(bytes(other), None) is None
    assert sends(caller, KEY, None)


@pytest.mark.parametrize("secret", [b"", KEY[:-1], KEY + b"x"])
def test_a_secret_has_one_size(secret: bytes) -> None:
    (caller,) = made_callers(1)
    with pytest.raises(ValueError, match="one size"):
        Callers().add(caller, secret, None)


def test_a_change_drops_the_callers_of_its_organization_and_their_secrets() -> None:
    callers, (changed,), (other,) = Callers(), made_callers(1), made_callers(1, "org_2")
    callers.add(changed, KEY, None)
    callers.add(other, key_of(2), None)
    callers.forget("org_1")
    assert callers.find(KEY, None) is None
    assert not sends(changed, KEY, None)
    assert callers.find(key_of(2), None) is other
    assert sends(other, key_of(2), None)
    callers.forget(None)
    assert callers.find(key_of(2), None) is None
    assert not sends(other, key_of(2), None)


def test_a_caller_takes_the_place_of_another_one_that_has_sent_the_same() -> None:
    callers, (old, new) = Callers(), made_callers(2)
    callers.add(old, KEY, b"mine")
    callers.add(new, KEY, b"mine")
    callers.add(new, KEY, b"mine")
    assert callers.find(KEY, b"mine") is new
    assert sends(new, KEY, b"mine")
    assert not sends(old, KEY, b"mine")


def test_the_oldest_are_dropped_if_there_are_too_many() -> None:
    callers, made = Callers(), made_callers(MAX_CALLERS + 1)
    for number, caller in enumerate(made):
        callers.add(caller, key_of(number), None)
    known = [callers.find(key_of(number), None) is caller for number, caller in enumerate(made)]
    assert known == [sends(caller, key_of(number), None) for number, caller in enumerate(made)]
    first = known.index(True)
    assert 0 < first < MAX_CALLERS // 4
    assert all(known[first:])
