"""Plays a load on the planner and the admission queue in simulated time, and on an LRU pool for comparison.

    result = play(Scenario(databases=1_000, capacity=128, pick=zipf(1_000)), planned=True)
    result.rate, result.openings_per_request, result.p99_ms("quiet")

The costs are those that were measured (processor time of both ends): a lookup 0.12 ms, an opening 5 ms, on two
processors that everything shares. Time passes only here, so the results are the same on every machine.
"""

import heapq
import random
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count

from plainsql_server.core.clock import Deadline
from plainsql_server.engine.pool.admission_queue import AdmissionQueue, TenantQueue
from plainsql_server.engine.pool.planner import Demand, Planner
from plainsql_server.engine.pool.planning import Planning

LOOKUP_S = 0.000_12
OPEN_S = 0.005
# Longer work is done in slices, as an operating system does.
SLICE_S = 0.000_5
PROCESSORS = 2
MAX_RUNNING = 64
POOL_LIMIT = 16
FAR = Deadline(1e12)

Pick = Callable[[random.Random], int]


def uniform(databases: int) -> Pick:
    return lambda chance: chance.randrange(databases)


def zipf(databases: int) -> Pick:
    sums = list(accumulate(1 / rank for rank in range(1, databases + 1)))
    return lambda chance: bisect_left(sums, chance.random() * sums[-1])


@dataclass(frozen=True)
class Tenant:
    """Clients that send one request after the other: to databases that `pick` chooses, with pauses between them."""

    name: str
    clients: int
    pick: Pick
    pause_s: float = 0.0
    # How long a statement waits for something that is no processor, a lock for example.
    sleeps_s: float = 0.0
    first_database: int = 0
    burst_every_s: float = 0.0
    begins_s: float = 0.0


@dataclass(frozen=True)
class Scenario:
    tenants: tuple[Tenant, ...]
    capacity: int
    lasts_s: float = 0.3
    warm_s: float = 0.4
    capacity_later: int | None = None
    openings_fail: float = 0.0
    # How often a connection breaks in use, how often it is closed because a row was large, how often all idle ones of
    # a database are broken, how often a request finds
    # that a database was swept (its idle connections closed, and its pool dropped if it is not in use), and how long a
    # request waits for a slot.
    lost: float = 0.0
    grown: float = 0.0
    stale: float = 0.0
    swept: float = 0.0
    waits_s: float = 1e9
    is_checked: bool = False
    organizations: Callable[[int], str] = str


@dataclass
class Result:
    """What was measured after the warm-up."""

    seconds: float
    openings: int = 0
    failures: int = 0
    penalties: int = 0
    dropped: int = 0
    open_at_end: int = 0
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answered: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return self.answered.total()

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def openings_per_request(self) -> float:
        return self.openings / max(1, self.requests)

    def p99_ms(self, tenant: str) -> float:
        waits = sorted(self.waits_s[tenant])
        return 1_000 * waits[int(len(waits) * 0.99)]

    def longest_ms(self, tenant: str) -> float:
        return 1_000 * max(self.waits_s[tenant])


class World:
    """Time, and processors that work on what they are given in turn."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._idle = PROCESSORS
        self._work: deque[tuple[float, Callable[[], None]]] = deque()

    def clock(self) -> float:
        return self.now_s

    def after(self, delay_s: float, callback: Callable[[], None]) -> "SimulatedTimer":
        timer = SimulatedTimer(callback)
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), timer.fire))
        return timer

    def compute(self, cost_s: float, done: Callable[[], None]) -> None:
        self._work.append((cost_s, done))
        self._go_on()

    def run_until(self, end_s: float, check: Callable[[], None] | None = None) -> None:
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, callback = heapq.heappop(self._events)
            callback()
            if check is not None:
                check()
        self.now_s = end_s

    def _go_on(self) -> None:
        while self._idle and self._work:
            self._idle -= 1
            cost_s, done = self._work.popleft()
            part_s = min(cost_s, SLICE_S)
            self.after(part_s, partial(self._did, cost_s - part_s, done))

    def _did(self, left_s: float, done: Callable[[], None]) -> None:
        self._idle += 1
        if left_s > 1e-9:
            self._work.append((left_s, done))
        else:
            done()
        self._go_on()


class SimulatedTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        self._callback = None


class Place:
    """A request that waits in the admission queue."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self.is_over = False

    def done(self) -> bool:
        return self.is_over

    def set_result(self, _: None) -> None:
        self.is_over = True
        self._start()


class SimulatedPool:
    """The pools of a process, with the product's own planner and queue, on simulated connections."""

    def __init__(self, world: World, scenario: Scenario, result: Result, chance: random.Random) -> None:
        self._world, self._scenario, self.result, self._chance = world, scenario, result, chance
        self.planner = Planner(scenario.capacity)
        running = min(MAX_RUNNING, scenario.capacity)
        self.admission = AdmissionQueue(running, 100_000, self.planner, world.clock, self._penalize)
        self.planning = Planning(self.planner, self.admission, self._close_one, world.clock, world.after)
        self._queues: dict[int, TenantQueue] = {}
        self.idle: dict[int, list[object]] = defaultdict(list)
        # The requests that have a slot and have not begun to use it.
        self._served = 0
        # The slots that no request has: an organization pays for a lost connection.
        self._penalties = 0

    def resize(self, capacity: int) -> None:
        self.planner.capacity = capacity
        self.planning.look_again()

    def ask(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        self._sweep()
        queue = self._queue(database)
        if not self.admission.take_free(queue):
            if queue.slots == 0:
                self.planning.give_first(queue)
            if not self.admission.take_free(queue):
                self._wait(queue, partial(self._start, database, sleeps_s, done), done)
                return
        self._served += 1
        self._start(database, sleeps_s, done)

    def _wait(self, queue: TenantQueue, start: Callable[[], None], done: Callable[[], None]) -> None:
        def serve() -> None:
            # Not at once: the product starts a served request when its task runs next.
            self._served += 1
            self._world.after(0.0, start)

        def give_up() -> None:
            if not place.is_over:
                place.is_over = True
                self.admission.give_up(queue, place)
                done()

        place = Place(serve)
        self.admission.enqueue(queue, place, FAR)
        self._world.after(self._scenario.waits_s, give_up)

    def check(self) -> None:
        queues = self._queues.values()
        pending = self.planner.granted - self.planner.open_count
        under_way = sum(queue.opening for queue in queues) + self._served
        assert 0 <= pending <= under_way, (pending, under_way)
        assert all(0 <= queue.running <= queue.slots <= POOL_LIMIT for queue in queues)
        assert all(queue.open_count + queue.opening <= queue.slots for queue in queues)
        assert self.planner.granted == sum(queue.slots for queue in queues)
        # Those that are in use may exceed a lower limit until the planner looks again.
        assert self.planner.granted <= max(self.planner.capacity, self._scenario.capacity)
        assert self.planner.open_count == sum(queue.open_count for queue in queues)
        assert self.planner.demands == set(queues)
        assert self.admission.running == sum(queue.running for queue in queues) + self._penalties

    def _queue(self, database: int) -> TenantQueue:
        if database not in self._queues:
            organization = self._scenario.organizations(database)
            self._queues[database] = self.admission.tenant_queue(organization, POOL_LIMIT, self.idle[database])
            self.admission.limit(self._queues[database], MAX_RUNNING)
        return self._queues[database]

    def _start(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        self._served -= 1
        queue = self._queues[database]
        open_before = queue.open_count
        self._lose_idle(database)
        if self.idle[database]:
            self.idle[database].pop()
            self._run(database, sleeps_s, done)
            return
        if queue.open_count < open_before:
            self._give_up_slot(queue)
            self.ask(database, sleeps_s, done)
            return
        opening = self.planner.begin_opening(queue, self._world.now_s)
        self._world.compute(OPEN_S, lambda: self._opened(database, opening, sleeps_s, done))

    def _opened(self, database: int, opening: object, sleeps_s: float, done: Callable[[], None]) -> None:
        self.planner.end_opening(self._queues[database], opening)
        if self._chance.random() < self._scenario.openings_fail:
            self.planner.is_failing = True
            self.result.failures += 1
            self._give_up_slot(self._queues[database])
            done()
        else:
            self.planner.opened(self._queues[database])
            self.result.openings += 1
            self._run(database, sleeps_s, done)
        self.planning.look_again()

    def _give_up_slot(self, queue: TenantQueue) -> None:
        self.planner.give_back(queue, 1)
        self.admission.release(queue, 0.0)
        self.planning.look_again()

    def _run(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        self._world.compute(LOOKUP_S, lambda: void(self._world.after(sleeps_s, lambda: self._release(database, done))))

    def _release(self, database: int, done: Callable[[], None]) -> None:
        queue = self._queues[database]
        if self._chance.random() < self._scenario.lost:
            self.planner.closed(queue)
            self.planner.give_back(queue, 1)
            self.admission.release_with_penalty(queue, 0.0)
            self.planning.look_again()
        elif self._chance.random() < self._scenario.grown:
            self.planner.closed(queue)
            self._give_up_slot(queue)
        else:
            self.idle[database].append(object())
            queue.touch(self._world.now_s)
            self.admission.release(queue, 0.0)
        done()

    def _penalize(self, delay_s: float, end: Callable[[], None]) -> "SimulatedTimer":
        def is_over() -> None:
            self._penalties -= 1
            end()

        self._penalties += 1
        self.result.penalties += 1
        return self._world.after(delay_s, is_over)

    def _sweep(self) -> None:
        """As `CellPools.close_idle` does with a database that was not used for long."""
        if not self._queues or self._chance.random() >= self._scenario.swept:
            return
        database = self._chance.choice(list(self._queues))
        queue = self._queues[database]
        while self.idle[database]:
            self._close_one(queue)
            self.planner.give_back_unused(queue)
        if queue.open_count == 0 and not queue.is_here:
            del self._queues[database]
            self.planner.leave(queue)
            self.admission.forget_the_idle({each.organization for each in self._queues.values()})
            self.result.dropped += 1

    def _lose_idle(self, database: int) -> None:
        """As the product does when it finds that idle connections are broken."""
        queue = self._queues[database]
        if self._chance.random() < self._scenario.stale:
            for _ in self.idle[database]:
                self.planner.closed(queue)
            self.idle[database].clear()
            if queue.slots > queue.open_count:
                self.planner.give_back_unused(queue)

    def _close_one(self, demand: Demand) -> None:
        assert isinstance(demand.idle, list)
        del demand.idle[0]
        self.planner.closed(demand)

    @property
    def open_count(self) -> int:
        return self.planner.open_count


class LruPool:
    """The pool as it was: it opens at once, and closes the connection that was idle longest."""

    def __init__(self, world: World, scenario: Scenario, result: Result, chance: random.Random) -> None:
        self._world, self._scenario, self.result, self._chance = world, scenario, result, chance
        self._capacity = scenario.capacity
        self.admission = AdmissionQueue(min(MAX_RUNNING, scenario.capacity), 100_000)
        self._queues: dict[int, TenantQueue] = {}
        self._idle: OrderedDict[object, int] = OrderedDict()
        self._stacks: dict[int, list[object]] = defaultdict(list)
        self.open_count = 0

    def resize(self, capacity: int) -> None:
        self._capacity = capacity

    def ask(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        if database not in self._queues:
            organization = self._scenario.organizations(database)
            self._queues[database] = self.admission.tenant_queue(organization, POOL_LIMIT)
            self.admission.limit(self._queues[database], MAX_RUNNING)
        if self.admission.take_free(self._queues[database]):
            self._start(database, sleeps_s, done)
        else:
            place = Place(lambda: void(self._world.after(0.0, lambda: self._start(database, sleeps_s, done))))
            self.admission.enqueue(self._queues[database], place, FAR)

    def check(self) -> None:
        assert self.open_count >= 0

    def _start(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        if self._stacks[database]:
            del self._idle[self._stacks[database].pop()]
            self._run(database, sleeps_s, done)
            return
        while self.open_count >= self._capacity and self._idle:
            connection, other = self._idle.popitem(last=False)
            self._stacks[other].remove(connection)
            self.open_count -= 1
        self.open_count += 1
        self._world.compute(OPEN_S, lambda: self._opened(database, sleeps_s, done))

    def _opened(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        if self._chance.random() < self._scenario.openings_fail:
            self.result.failures += 1
            self.open_count -= 1
            self.admission.release(self._queues[database], 0.0)
            done()
        else:
            self.result.openings += 1
            self._run(database, sleeps_s, done)

    def _run(self, database: int, sleeps_s: float, done: Callable[[], None]) -> None:
        self._world.compute(LOOKUP_S, lambda: void(self._world.after(sleeps_s, lambda: self._release(database, done))))

    def _release(self, database: int, done: Callable[[], None]) -> None:
        connection = object()
        self._stacks[database].append(connection)
        self._idle[connection] = database
        self.admission.release(self._queues[database], 0.0)
        done()


def void(_: object) -> None:
    """Makes a callback of something that returns a value."""


class Client:
    """Sends one request after the other."""

    def __init__(self, world: World, pool: SimulatedPool | LruPool, tenant: Tenant, chance: random.Random) -> None:
        self._world, self._pool, self._tenant, self._chance = world, pool, tenant, chance
        self._asked_s = 0.0

    def ask(self) -> None:
        self._asked_s = self._world.now_s
        database = self._tenant.first_database + self._tenant.pick(self._chance)
        self._pool.ask(database, self._tenant.sleeps_s, self._answered)

    def _answered(self) -> None:
        tenant, result = self._tenant, self._pool.result
        result.waits_s[tenant.name].append(self._world.now_s - self._asked_s)
        result.answered[tenant.name] += 1
        pause_s = tenant.pause_s
        if tenant.burst_every_s:
            pause_s = tenant.burst_every_s - self._world.now_s % tenant.burst_every_s
        # Never in the same breath: a chain of requests would have no end.
        self._world.after(max(pause_s, 1e-6), self.ask)


def play(scenario: Scenario, *, planned: bool = True, seed: int = 1) -> Result:
    """Plays a scenario on the product's planner, or on the LRU pool."""
    chance, world = random.Random(seed), World()
    pool = (SimulatedPool if planned else LruPool)(world, scenario, Result(scenario.lasts_s), chance)
    for tenant in scenario.tenants:
        for number in range(tenant.clients):
            world.after(tenant.begins_s + number * 1e-5, Client(world, pool, tenant, chance).ask)
    check = pool.check if scenario.is_checked else None
    world.run_until(scenario.warm_s, check)
    pool.result = Result(scenario.lasts_s)
    if scenario.capacity_later is not None:
        pool.resize(scenario.capacity_later)
    world.run_until(scenario.warm_s + scenario.lasts_s, check)
    pool.check()
    pool.result.open_at_end = pool.open_count
    return pool.result
