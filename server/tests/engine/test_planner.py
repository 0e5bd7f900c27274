"""The pool's decisions in simulated time: ten loads, each beside an LRU pool, and what must hold whatever happens."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plainsql_server.engine.pool.planner import (
    COLD_S,
    GROW_AT_ANY_COST_S,
    MAX_PENDING,
    OPEN_COST_S,
    SETTLED_S,
    SETTLED_TIMES,
    STUCK_S,
    Demand,
    Planner,
    Step,
    is_owed,
)
from server.tests.engine.pool_simulation import POOL_LIMIT, Pick, Result, Scenario, Tenant, play, uniform, zipf

pytestmark = pytest.mark.unit

CLIENTS = 32


def busy(pick_of: Callable[[int], Pick], databases: int) -> Tenant:
    return Tenant("busy", CLIENTS, pick_of(databases))


def both(scenario: Scenario) -> tuple[Result, Result]:
    """The planner's result, and the LRU pool's."""
    return play(scenario), play(scenario, planned=False)


@pytest.fixture(scope="module")
def one_database() -> Result:
    return play(Scenario((busy(uniform, 1),), capacity=64, warm_s=0.1, lasts_s=0.1))


def test_one_database_alone_is_as_fast_as_with_an_lru_pool(one_database: Result) -> None:
    control = play(Scenario((busy(uniform, 1),), capacity=64, warm_s=0.1, lasts_s=0.1), planned=False)
    assert one_database.rate >= 0.98 * control.rate
    assert one_database.openings == 0


@pytest.mark.parametrize(
    ("tenant", "capacity", "share"),
    [
        pytest.param(busy(uniform, 40), 48, 0.85, id="all hot"),
        pytest.param(busy(zipf, 100), 128, 0.85, id="zipf"),
        pytest.param(busy(uniform, 100), 128, 0.95, id="uniform"),
    ],
)
def test_many_busy_databases_are_nearly_as_fast_as_one(
    one_database: Result, tenant: Tenant, capacity: int, share: float
) -> None:
    planned, control = both(Scenario((tenant,), capacity, warm_s=0.8))
    assert planned.rate >= share * one_database.rate
    assert planned.openings_per_request <= 0.005
    assert planned.rate > control.rate
    assert planned.openings_per_request < control.openings_per_request
    assert planned.p99_ms("busy") < control.p99_ms("busy")


@pytest.mark.parametrize("pick_of", [zipf, uniform])
def test_once_warm_nothing_is_opened_while_connections_are_left(pick_of: Callable[[int], Pick]) -> None:
    # Some requests of a database always meet by chance, however many connections it has.
    planned = play(Scenario((busy(pick_of, 100),), capacity=500, warm_s=4.0, lasts_s=3.0))
    assert planned.openings == 0
    assert planned.p99_ms("busy") <= 5


def test_a_database_that_gets_busy_after_a_quiet_time_grows_quickly(one_database: Result) -> None:
    quiet = Tenant("quiet", 1, uniform(1), pause_s=0.01)
    late = Tenant("late", CLIENTS - 1, uniform(1), begins_s=SETTLED_S + 1)
    planned = play(Scenario((quiet, late), capacity=64, warm_s=SETTLED_S + 1.2, lasts_s=0.1))
    assert planned.open_at_end == POOL_LIMIT
    assert planned.rate >= 0.98 * one_database.rate


def test_too_many_databases_for_the_connections_are_served_better_than_by_an_lru_pool() -> None:
    planned, control = both(Scenario((busy(zipf, 500),), capacity=64))
    assert planned.rate > 1.3 * control.rate


def test_a_hot_database_among_many_neither_starves_nor_takes_everything(one_database: Result) -> None:
    hot = Tenant("hot", 24, uniform(1))
    others = Tenant("others", 8, uniform(60), first_database=1)
    planned, control = both(Scenario((hot, others), capacity=72))
    assert planned.rate >= 0.9 * one_database.rate
    assert planned.rate > control.rate
    assert planned.p99_ms("others") <= 10
    assert planned.p99_ms("hot") <= 10


def test_bursts_open_only_what_they_need() -> None:
    burst = Tenant("burst", 100, uniform(20), burst_every_s=0.05)
    planned, control = both(Scenario((burst,), capacity=64, lasts_s=1.0))
    assert planned.openings_per_request <= 0.02
    assert planned.openings_per_request < control.openings_per_request
    assert planned.p99_ms("burst") < control.p99_ms("burst")


FLOOD, QUIET = 200, 1_000


def organization_of(database: int) -> str:
    return "quiet" if database >= QUIET else "flood"


@pytest.mark.parametrize("databases", [1, FLOOD])
def test_a_flood_leaves_a_quiet_organization_its_connection(databases: int) -> None:
    quiet = Tenant("quiet", 1, uniform(1), pause_s=0.01, first_database=QUIET)
    alone = play(Scenario((quiet,), capacity=64))
    flood = Tenant("flood", 100, uniform(databases))
    planned, control = both(Scenario((flood, quiet), capacity=64, organizations=organization_of))
    # Both share the processors, in which the flood has work of up to half of the slots waiting.
    assert planned.p99_ms("quiet") <= alone.p99_ms("quiet") + 10
    assert planned.longest_ms("quiet") <= 100
    if databases == FLOOD:
        assert planned.longest_ms("quiet") < control.longest_ms("quiet")


@pytest.mark.parametrize("grown", [0.0, 1.0])
def test_one_that_comes_during_a_flood_gets_a_connection_to_each_of_its_databases(grown: float) -> None:
    """Also if the flood's connections are closed after each use, and others opened."""
    flood = Tenant("flood", 100, uniform(FLOOD))
    quiet = Tenant("quiet", 4, uniform(20), pause_s=0.01, first_database=QUIET, begins_s=0.5)
    late = Scenario((flood, quiet), capacity=64, grown=grown, is_checked=True, organizations=organization_of)
    planned = play(late)
    assert planned.answered["quiet"] > 20
    assert planned.longest_ms("quiet") <= 100


def test_an_organization_with_slow_statements_leaves_the_others_their_connections() -> None:
    slow = Tenant("slow", 100, uniform(100), sleeps_s=0.2)
    quiet = Tenant("quiet", 4, uniform(8), first_database=QUIET)
    planned = play(Scenario((slow, quiet), capacity=64, organizations=organization_of))
    assert planned.p99_ms("quiet") <= 20
    assert planned.answered["slow"] > 20


def test_a_cold_start_opens_each_connection_once() -> None:
    planned, control = both(Scenario((busy(uniform, 100),), capacity=128, warm_s=0.0, lasts_s=0.6))
    assert planned.openings <= 128
    assert planned.openings < control.openings
    assert planned.rate > control.rate


def test_with_a_lower_limit_the_surplus_is_closed_and_work_goes_on() -> None:
    scenario = Scenario((busy(uniform, 40),), capacity=128, capacity_later=48)
    planned = play(scenario)
    assert planned.open_at_end <= 48
    assert planned.rate > play(scenario, planned=False).rate


def test_failing_openings_hold_up_no_request() -> None:
    planned = play(Scenario((busy(uniform, 40),), capacity=20, openings_fail=0.5, lasts_s=1.0))
    assert planned.failures > 10
    assert planned.requests > 100
    assert planned.longest_ms("busy") <= 500


SCENARIOS = st.builds(
    lambda databases, clients, organizations, lost, **others: Scenario(
        (Tenant("busy", clients, uniform(databases), sleeps_s=0.001), Tenant("late", 1, uniform(1), first_database=99)),
        organizations=lambda database: str(database % organizations),
        warm_s=0.05,
        is_checked=True,
        lost=lost,
        # An organization that loses connections again and again has five requests a second.
        lasts_s=1.5 if lost else 0.3,
        **others,
    ),
    databases=st.integers(1, 12),
    clients=st.integers(1, 12),
    organizations=st.integers(1, 5),
    capacity=st.integers(1, 8),
    capacity_later=st.none() | st.integers(1, 8),
    openings_fail=st.sampled_from([0.0, 0.3]),
    lost=st.sampled_from([0.0, 0.1]),
    grown=st.sampled_from([0.0, 0.1]),
    stale=st.sampled_from([0.0, 0.1]),
    swept=st.sampled_from([0.0, 0.1]),
    waits_s=st.sampled_from([0.002, 0.02, 1e9]),
)


@settings(max_examples=25, deadline=None)
@given(scenario=SCENARIOS, seed=st.integers(0, 100))
def test_every_database_is_served_and_no_slot_is_lost(scenario: Scenario, seed: int) -> None:
    """`play` checks the slots after each event."""
    result = play(scenario, seed=seed)
    assert result.answered["busy"] >= scenario.tenants[0].clients
    assert result.answered["late"] > 0


def test_the_simulation_knows_penalties_and_dropped_pools() -> None:
    losing = Scenario(
        (busy(uniform, 40),),
        capacity=64,
        warm_s=0.0,
        lost=0.1,
        swept=0.1,
        is_checked=True,
        organizations=lambda _: "one",
    )
    result = play(losing)
    assert result.penalties > 10
    assert result.dropped > 10


class Owner:
    slots = 0


def demand_of(
    planner: Planner, *, slots: int = 0, idle: int = 0, used_s: float = 0.0, owner: Owner | None = None
) -> Demand:
    demand = Demand(owner or Owner(), 16, [object()] * idle)
    planner.join(demand)
    planner.give_back(demand, -slots)
    for _ in range(slots):
        planner.opened(demand)
    demand.running = slots - idle
    demand.touch(used_s)
    demand.grown_s = used_s
    return demand


def test_the_first_connection_is_given_at_once_and_another_after_waiting() -> None:
    planner = Planner(8)
    first, second = demand_of(planner), demand_of(planner, slots=1)
    assert planner.next_step(1.0, [(second, 5)]) is None
    assert planner.next_step(1.0, [(second, 5), (first, 1)]) == Step(first, None)
    planner.accrue(1.0, OPEN_COST_S / 5, [(second, 5)])
    assert planner.next_step(1.0, [(second, 5)]) == Step(second, None)
    assert planner.next_step(1.0, [(second, 5)]) is None


def test_of_two_databases_without_a_connection_the_one_of_the_organization_with_fewer_comes_first() -> None:
    planner, flood, quiet = Planner(8), Owner(), Owner()
    demand_of(planner, slots=2, owner=flood)
    first, second = demand_of(planner, owner=flood), demand_of(planner, owner=quiet)
    assert planner.next_step(1.0, [(first, 9), (second, 1)]) == Step(second, None)


def test_a_database_takes_from_one_that_has_a_single_connection_only_after_waiting_for_long() -> None:
    planner, organization = Planner(2), Owner()
    taker = demand_of(planner, slots=1, owner=organization)
    other = demand_of(planner, slots=1, idle=1, used_s=5.0, owner=organization)
    taker.owed_s = GROW_AT_ANY_COST_S * 0.9
    assert planner.next_step(5.0, [(taker, 1)]) is None
    taker.owed_s = GROW_AT_ANY_COST_S
    assert planner.next_step(5.0, [(taker, 1)]) == Step(taker, other)


def test_one_that_was_used_often_is_missed_more_than_one_that_was_used_last() -> None:
    planner = Planner(2)
    taker = demand_of(planner)
    often, last = (demand_of(planner, slots=1, idle=1) for _ in range(2))
    for second in range(1, 6):
        often.touch(float(second))
    last.touch(6.0)
    assert planner.next_step(6.0, [(taker, 1)]) == Step(taker, last)


def test_a_database_that_has_managed_with_its_connections_gets_another_only_after_waiting_for_much_longer() -> None:
    grown = demand_of(Planner(8), slots=2)
    assert is_owed_after(grown, SETTLED_S / 2, OPEN_COST_S)
    assert not is_owed_after(grown, SETTLED_S + 1, OPEN_COST_S)
    assert is_owed_after(grown, SETTLED_S + 1, OPEN_COST_S * SETTLED_TIMES)


def is_owed_after(demand: Demand, now_s: float, waited_s: float) -> bool:
    demand.owed_s = waited_s
    return is_owed(demand, now_s)


def test_no_more_than_a_few_openings_are_under_way_unless_they_are_stuck_or_fail() -> None:
    planner = Planner(100)
    demands = [demand_of(planner) for _ in range(MAX_PENDING + 2)]
    for demand in demands[:MAX_PENDING]:
        assert planner.next_step(1.0, [(demand, 1)]) is not None
        planner.begin_opening(demand, 1.0)
    late = demands[MAX_PENDING]
    assert planner.next_step(1.0, [(late, 1)]) is None
    assert not planner.may_step(1.0)
    assert planner.next_step(1.0 + 2 * STUCK_S, [(late, 1)]) == Step(late, None)
    last = demands[MAX_PENDING + 1]
    assert planner.next_step(1.0, [(last, 1)]) is None
    planner.is_failing = True
    assert planner.next_step(1.0, [(last, 1)]) == Step(last, None)


def test_the_victim_is_the_cold_one_then_the_one_with_several_then_the_least_used() -> None:
    now_s = COLD_S + 1
    victims: list[str] = []
    for missing in range(4):
        planner = Planner(0)
        taker = demand_of(planner)
        others = {
            "cold": demand_of(planner, slots=1, idle=1, used_s=0.5),
            "several": demand_of(planner, slots=2, idle=2, used_s=now_s),
            "seldom": demand_of(planner, slots=1, idle=1, used_s=now_s),
            "often": demand_of(planner, slots=1, idle=1, used_s=COLD_S),
        }
        others["often"].touch(now_s)
        for name in victims[:missing]:
            planner.demands.remove(others[name])
        planner.capacity = planner.granted
        step = planner.next_step(now_s, [(taker, 1)])
        assert step is not None
        victims.append(next(name for name, demand in others.items() if demand is step.victim))
    assert victims == ["cold", "several", "seldom", "often"]


def test_an_organization_takes_from_its_own_before_it_takes_from_one_with_fewer() -> None:
    planner, flood, quiet = Planner(3), Owner(), Owner()
    taker = demand_of(planner, owner=flood)
    own = demand_of(planner, slots=1, idle=1, used_s=1.0, owner=flood)
    own.touch(2.0)
    demand_of(planner, slots=1, idle=0, used_s=2.0, owner=flood)
    other = demand_of(planner, slots=1, idle=1, used_s=1.0, owner=quiet)
    assert planner.next_step(2.0, [(taker, 1)]) == Step(taker, own)
    planner.demands.remove(own)
    planner.give_back(taker, 1)
    planner.capacity = planner.granted
    # Everything of its own is in use now.
    assert planner.next_step(2.0, [(taker, 1)]) == Step(taker, other)


def test_a_connection_that_a_request_is_about_to_take_is_no_victim() -> None:
    planner = Planner(1)
    taker, other = demand_of(planner), demand_of(planner, slots=1, idle=1)
    other.running = 1
    assert planner.next_step(1.0, [(taker, 1)]) is None
    other.running = 0
    assert planner.next_step(1.0, [(taker, 1)]) == Step(taker, other)
