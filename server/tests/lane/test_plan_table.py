"""What a route remembers of its bodies is bounded, in number and in bytes."""

import json

import pytest

from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.plans.frame import Scalars
    from plainsql_server.lane.plans.plan import MAX_KEY_BYTES, MAX_PLANS, QueryPlans

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

BODY_BYTES = 4096


def body(number: int, size: int = 0) -> bytes:
    return json.dumps({"sql": f"select {number}"}).ljust(size).encode()


def test_the_oldest_of_many_plans_is_forgotten() -> None:
    plans = QueryPlans(Scalars())
    learned = [plans.of(body(number)) for number in range(MAX_PLANS + 1)]
    assert len(plans.whole) == MAX_PLANS
    assert plans.whole.key_bytes == sum(len(body(number)) for number in range(1, MAX_PLANS + 1))
    assert plans.of(body(1)) is learned[1]
    assert plans.of(body(0)) is not learned[0]


def test_long_bodies_take_no_more_than_their_bytes() -> None:
    plans = QueryPlans(Scalars())
    fitting = MAX_KEY_BYTES // BODY_BYTES
    for number in range(3 * fitting):
        assert plans.of(body(number, BODY_BYTES)) is not None
    assert len(plans.whole) == fitting < MAX_PLANS
    assert plans.whole.key_bytes == MAX_KEY_BYTES
