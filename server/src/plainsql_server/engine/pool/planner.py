"""Decides which database of a cell gets one more connection, and which one loses one. Pure: no input, no output.

    planner = Planner(capacity=128)
    planner.join(demand)
    step = planner.next_step(now_s, waiting)      # waiting: the demands with requests that wait, and how many
    if step is not None: …                        # close one of step.victim's idle connections; step.taker may open one

A slot is the right of a database to one connection. A database has as many slots as connections, or is about to open
the missing ones. The planner gives slots and takes them back; `pools.py` does what it says.

To open a connection takes as much processor time as a hundred lookups. So a database that has connections gets another
only after its requests have waited for as long, in sum, as opening takes. If it has managed with those that it has for
some time, they must wait for much longer: some requests always meet by chance, and growth must come to an end. A
database that has none gets its first at once. If all slots are given, one is taken from another database: from one that
is no longer used, from one that has several, or else from the one that is used least.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

# How long requests of a database wait, in sum, before it gets another connection: what opening one costs.
OPEN_COST_S = 0.01
# Waiting counts for so long: requests that meet now and then are no reason for another connection.
OWED_FOR_S = 1.0
# A database that got none for so long has enough, unless its requests wait for so many times as long as that.
SETTLED_S = 2.0
SETTLED_TIMES = 5
# Connections that a process opens to a cell at once. Each takes a processor of the cell for some milliseconds.
MAX_PENDING = 4
# A database that was not used for so long gives up its connections first.
COLD_S = 30.0
# If all slots are given, a database gets one more this often at most: what databases take from each other is lost.
GROW_EVERY_S = 1.0
# After its requests have waited for so long, it takes one even from a database that is in use.
GROW_AT_ANY_COST_S = 0.25
# An opening that takes longer is stuck: it does not count among those that are under way.
STUCK_S = 0.25
# How fast past uses lose their weight, and the shortest time between two uses that are counted: a burst counts once.
FADE_S = 30.0
TOUCH_EVERY_S = 0.05


class SlotOwner(Protocol):
    """The owner of databases: how many slots they have together."""

    slots: int


class Demand:
    """A database: its slots, its connections, and how much it is used."""

    __slots__ = (
        "grown_s", "heat", "idle", "max_slots", "open_count", "opening", "organization", "owed_at_s", "owed_s",
        "running", "slots", "used_s",
    )  # fmt: skip

    def __init__(self, organization: SlotOwner, max_slots: int, idle: Sequence[object]) -> None:
        self.organization = organization
        self.max_slots = max_slots
        # Its idle connections. Its owner keeps the list.
        self.idle = idle
        self.slots = 0
        # The slots that are in use: by requests that have a connection, or are about to take or to open one.
        self.running = 0
        # Its open connections, and those that are being opened.
        self.open_count = 0
        self.opening = 0
        # How long its requests have waited in the last second or so, since it got its last slot.
        self.owed_s = 0.0
        self.owed_at_s = -math.inf
        self.grown_s = -math.inf
        self.used_s = -math.inf
        # The logarithm of the sum of e^(time of use / FADE_S) over all uses.
        self.heat = -math.inf

    def touch(self, now_s: float) -> None:
        """Counts a use. To call it more often than every TOUCH_EVERY_S changes nothing."""
        if now_s - self.used_s < TOUCH_EVERY_S:
            return
        self.used_s = now_s
        use = now_s / FADE_S
        more, less = (self.heat, use) if self.heat > use else (use, self.heat)
        self.heat = more + math.log1p(math.exp(less - more))


_D = TypeVar("_D", bound=Demand)


@dataclass(frozen=True, slots=True)
class Step(Generic[_D]):
    """What to do next: close an idle connection of `victim`, and let `taker` open one. One of them may be None."""

    taker: _D | None
    victim: Demand | None


class Planner:
    """The slots of one cell, as far as this process may use them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Whether the last opening failed. Then each request finds out for itself, and none waits for another's failure.
        self.is_failing = False
        self.granted = 0
        self.open_count = 0
        self.demands: set[Demand] = set()
        # When each opening that is under way began; the oldest first.
        self._openings: dict[object, float] = {}

    @property
    def in_use(self) -> int:
        """How many connections are open, are being opened, or may be opened by who has a slot."""
        return max(self.granted, self.open_count + len(self._openings))

    def join(self, demand: Demand) -> None:
        """Adds a database."""
        self.demands.add(demand)

    def leave(self, demand: Demand) -> None:
        """Removes a database, which may have no connection left."""
        self.give_back(demand, demand.slots)
        self.demands.remove(demand)

    def next_step(self, now_s: float, waiting: Iterable[tuple[_D, int]]) -> Step[_D] | None:
        """Returns the next step, which counts as done, or None if there is none for now.

        `waiting` has the databases whose requests wait only for a connection.
        """
        step = self._shrink(now_s) or self._serve(now_s, list(waiting))
        if step is not None:
            if step.victim is not None:
                self.give_back(step.victim, 1)
            if step.taker is not None:
                self._give(step.taker, now_s)
        return step

    def may_step(self, now_s: float) -> bool:
        """Whether there may be a next step, whatever waits."""
        return self.granted > self.capacity or self._may_open(now_s)

    def accrue(self, now_s: float, passed_s: float, waiting: Iterable[tuple[_D, int]]) -> None:
        """Adds the time that passed to what each waiting database is owed. What is older counts less."""
        for demand, requests in waiting:
            rest = max(0.0, 1.0 - (now_s - demand.owed_at_s) / OWED_FOR_S)
            demand.owed_s = demand.owed_s * rest + passed_s * requests
            demand.owed_at_s = now_s

    def begin_opening(self, demand: Demand, now_s: float) -> object:
        """Notes that a connection is being opened. Returns a token for `end_opening`."""
        opening = object()
        self._openings[opening] = now_s
        demand.opening += 1
        return opening

    def end_opening(self, demand: Demand, opening: object) -> None:
        """Notes that a connection is open, or could not be opened."""
        del self._openings[opening]
        demand.opening -= 1

    def opened(self, demand: Demand) -> None:
        """Counts a connection that was opened."""
        demand.open_count += 1
        self.open_count += 1
        self.is_failing = False

    def closed(self, demand: Demand) -> None:
        """Counts a connection that was closed."""
        demand.open_count -= 1
        self.open_count -= 1

    def give_back_unused(self, demand: Demand) -> None:
        """Takes back slots that have no connection and are not needed to open one."""
        self.give_back(demand, max(0, demand.slots - max(demand.open_count + demand.opening, demand.running)))

    def give_back(self, demand: Demand, slots: int) -> None:
        """Takes back slots, whose connections are closed."""
        demand.slots -= slots
        demand.organization.slots -= slots
        self.granted -= slots

    def _give(self, demand: Demand, now_s: float) -> None:
        demand.slots += 1
        demand.organization.slots += 1
        self.granted += 1
        demand.owed_s = 0.0
        demand.grown_s = now_s
        demand.touch(now_s)

    def _shrink(self, now_s: float) -> Step[Any] | None:
        if self.granted <= self.capacity:
            return None
        victim = self._cheapest(None, now_s, max_rank=_RANK_OTHERS)
        return None if victim is None else Step(None, victim)

    def _serve(self, now_s: float, waiting: list[tuple[_D, int]]) -> Step[_D] | None:
        if not waiting or not self._may_open(now_s):
            return None
        # An organization with few connections comes before one that floods the cell with its databases.
        waiting.sort(key=lambda each: each[0].organization.slots)
        for demand, _ in waiting:
            if demand.slots == 0 and (step := self._first(demand, now_s)) is not None:
                return step
        # Only the one that is owed most: to look for a connection that another can spare takes time.
        owed = [demand for demand, _ in waiting if is_owed(demand, now_s) and self._may_grow(demand, now_s)]
        return self._another(max(owed, key=lambda demand: demand.owed_s), now_s) if owed else None

    def _may_open(self, now_s: float) -> bool:
        pending = self.granted - self.open_count
        if self.is_failing or pending < MAX_PENDING:
            return True
        # Each that is stuck makes way for two, so that soon every request finds out for itself.
        stuck = sum(1 for began_s in self._openings.values() if began_s < now_s - STUCK_S)
        return pending - 2 * stuck < MAX_PENDING

    def _may_grow(self, demand: Demand, now_s: float) -> bool:
        return self.granted < self.capacity or now_s - demand.grown_s >= GROW_EVERY_S

    def _first(self, taker: _D, now_s: float) -> Step[_D] | None:
        if self.granted < self.capacity:
            return Step(taker, None)
        victim = self._cheapest(taker, now_s, max_rank=_RANK_OTHERS)
        return None if victim is None else Step(taker, victim)

    def _another(self, taker: _D, now_s: float) -> Step[_D] | None:
        if self.granted < self.capacity:
            return Step(taker, None)
        is_urgent = taker.owed_s >= GROW_AT_ANY_COST_S
        victim = self._cheapest(taker, now_s, max_rank=_RANK_OTHERS if is_urgent else _RANK_SPARE)
        return None if victim is None else Step(taker, victim)

    def _cheapest(self, taker: Demand | None, now_s: float, max_rank: int) -> Demand | None:
        """The database with an unused connection that misses it least."""
        best, least = None, (max_rank + 1, 0.0, 0.0)
        for demand in self.demands:
            is_unused = demand.idle and demand.running < demand.slots
            if is_unused and demand is not taker and (cost := _cost(demand, taker, now_s)) < least:
                best, least = demand, cost
        return best


def is_owed(demand: Demand, now_s: float) -> bool:
    """Whether the requests of a database have waited long enough for another connection."""
    times = SETTLED_TIMES if now_s - demand.grown_s > SETTLED_S else 1
    return 0 < demand.slots < demand.max_slots and demand.owed_s >= OPEN_COST_S * times


# What it costs to take a connection from a database: from one that is not used any more, from one that has several,
# from a database of the same organization or of one with more slots, and from any other.
_RANK_COLD, _RANK_SPARE, _RANK_RICHER, _RANK_OTHERS = range(4)


def _cost(demand: Demand, taker: Demand | None, now_s: float) -> tuple[int, float, float]:
    if now_s - demand.used_s > COLD_S:
        return _RANK_COLD, demand.used_s, 0.0
    if (
        taker is None
        or demand.organization is taker.organization
        or (demand.organization.slots > taker.organization.slots)
    ):
        has_spare = demand.slots >= (2 if taker is None else taker.slots + 2)
        return (_RANK_SPARE, -demand.slots, demand.heat) if has_spare else (_RANK_RICHER, demand.heat, 0.0)
    # An organization finds something of its own, unless all of it is in use, and that is limited by the admission
    # queue. So an organization that floods the cell does not get here, and the quiet ones keep what they have.
    return _RANK_OTHERS, demand.heat, 0.0
