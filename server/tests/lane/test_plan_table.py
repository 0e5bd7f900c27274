"""What a route remembers of its bodies is bounded, in number and in bytes."""

import json

import pytest

from plainsql_server.extension_modules import COMPILED

if COMPILED:
    from plainsql_server.lane.plans.frame import Scalars
    from plainsql_server.lane.plans.plan import MAX_KEY_BYTES, MAX_PLANS, QueryPlans
    from plainsql_server.lane.plans.sql_plan import SqlPlans

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


def test_all_layouts_of_an_answer_share_the_bounds() -> None:
    route = SqlPlans(Scalars())
    lines = ((), (b"neon-raw-text-output",), (b"neon-array-mode",), (b"neon-raw-text-output", b"neon-array-mode"))
    layouts = [route.for_headers(dict.fromkeys(names, b"true")) for names in lines]
    for query, params in ((b"select $1", b"[1]"), (b"select 1", b"[]")):
        learned = [each.of(b'{"query":"%b","params":%b}' % (query, params)) for each in layouts]
        assert len({plan.encoding for plan in learned if plan is not None}) == len(layouts)
    for number in range(MAX_PLANS):
        for plans in layouts:
            assert plans.of(b'{"query":"select %d"}' % number) is not None
            assert plans.of(b'{"query":"select $1, %d","params":[1]}' % number) is not None
    assert len(layouts[0].whole) == len(layouts[0].framed) == MAX_PLANS
    assert all(plans.whole is layouts[0].whole and plans.framed is layouts[0].framed for plans in layouts)


def test_each_layout_of_an_answer_finds_its_own_plans_again() -> None:
    route = SqlPlans(Scalars())
    layouts = [route.for_headers({}), route.for_headers({b"neon-array-mode": b"true"})]
    body = b'{"query":"select $1","params":[%d]}'
    learned = [plans.of(body % 1) for plans in layouts]
    assert [plans.of(body % 2) for plans in layouts] == learned
    assert learned[0] is not learned[1]
