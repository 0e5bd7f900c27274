"""The admission queue of a cell: which request may use a connection now, and which ones wait.

    queue = admission.tenant_queue(organization_id, max_running=4)
    await admission.acquire(queue, deadline)
    …
    admission.release(queue, held_s)

A slot is the right to use one connection. Organizations get slots in turn, however many requests each of them has
waiting, so that none is kept out by another's many requests. A request that cannot start in time, or finds the queue
full, is rejected at once: an early no is worth more than a late one. How many slots each database has, the planner
decides (`planner.py`); the queue knows nothing else of connections.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import RETRY_AFTER_MS, LimitError
from plainsql_server.engine.pool.planner import Demand, Planner

# The weight of the newest measurement in the mean time that a slot is held.
_MEAN_WEIGHT = 0.02
# The mean until something has been measured.
_FIRST_MEAN_S = 0.001
# How much longer a slot is held whose connection was lost. So an organization gets five connections a second replaced:
# opening one takes the cell's processors for some milliseconds, and the cell's guard (`operations/priorities.py`) does
# not see at once what runs on a new one.
_PENALTY_S = 0.2
# How many may be lost without a penalty, or all that the organization has: a server that restarts takes them all.
_LOST_AT_ONCE = 8


class Waiter(Protocol):
    """A request that waits for a slot: a future, or one of the fast lane's."""

    def done(self) -> bool:
        """Whether it has got its slot, or has given up."""

    def set_result(self, result: None, /) -> None:
        """Called when it gets its slot."""


class Timer(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None: ...


def call_later(delay_s: float, callback: Callable[[], None]) -> Timer:
    """Calls back after a delay, in the running loop."""
    return asyncio.get_running_loop().call_later(delay_s, callback)


CallLater = Callable[[float, Callable[[], None]], Timer]


class OrganizationQueue:
    """An organization: its slots, its limit, and its requests that wait."""

    __slots__ = (
        "lines", "max_running", "mean_slot_s", "name", "paid_until_s", "running", "slots", "tier_max_running",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        # What its tier allows, and what it may have here: no more than the cell's slots allow.
        self.tier_max_running = 0
        self.max_running = 0
        # The slots that the planner has given to its databases.
        self.slots = 0
        self.waiting = 0
        self.mean_slot_s = _FIRST_MEAN_S
        # When the penalties for its lost connections are over.
        self.paid_until_s = -math.inf
        # Waiting requests by pool, so that a full pool does not hold up the others. No line is empty.
        self.lines: dict[TenantQueue, deque[Waiter]] = {}


class TenantQueue(Demand):
    """The requests of one pool, which belong to one organization. The planner gives it slots."""

    __slots__ = ()

    organization: OrganizationQueue

    @property
    def is_here(self) -> bool:
        """Whether one of its requests has a slot or waits for one."""
        return self.running > 0 or self in self.organization.lines


class AdmissionQueue:
    """Which requests of one cell run, as far as this process may use it.

    Without a planner, each pool has as many slots as it may have at the most.
    """

    def __init__(
        self,
        max_running: int,
        max_waiting: int,
        planner: Planner | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: CallLater = call_later,
    ) -> None:
        self._planner = planner
        self._clock = clock
        self._call_later = call_later
        self._max_waiting = max_waiting
        # Nor more than half of the places in the queue, for the same reason.
        self._waiting_ceiling = max(1, max_waiting // 2)
        self._organizations: dict[str, OrganizationQueue] = {}
        self.resize(max_running)
        # Organizations with waiting requests; the next to be served is at the front.
        self._round: OrderedDict[OrganizationQueue, None] = OrderedDict()
        self._mean_slot_s = _FIRST_MEAN_S
        self.running = 0
        self.waiting = 0
        # Called when a request begins to wait, and before a released slot goes to a waiting request.
        self.on_wait: Callable[[TenantQueue], None] | None = None
        self.before_serving: Callable[[], None] | None = None

    def resize(self, max_running: int) -> None:
        """Sets how many requests may run at once. Call `serve` then, to start those that wait."""
        self._max_running = max_running
        # No organization may hold more than half of the slots, so that a second one always finds one.
        self._organization_ceiling = max(1, max_running // 2)
        for organization in self._organizations.values():
            # Not when its next request comes: those that wait now may start, and none may come.
            organization.max_running = min(organization.tier_max_running, self._organization_ceiling)

    def tenant_queue(self, organization_id: str, max_running: int, idle: Sequence[object] = ()) -> TenantQueue:
        """The queue of a new pool, whose requests may have `max_running` slots at once.

        `idle` is the list of its idle connections.
        """
        organization = self._organizations.get(organization_id)
        if organization is None:
            organization = self._organizations[organization_id] = OrganizationQueue(organization_id)
        queue = TenantQueue(organization, max_running, idle)
        if self._planner is not None:
            self._planner.join(queue)
        else:
            queue.slots = queue.open_count = max_running
        return queue

    def forget_the_idle(self, in_use: set[OrganizationQueue]) -> None:
        """Drops organizations that have no pool any more."""
        self._organizations = {org.name: org for org in self._organizations.values() if org in in_use or org.lines}

    def limit(self, queue: TenantQueue, max_running: int) -> None:
        """Sets how many slots the organization may have, as its tier says now."""
        organization = queue.organization
        organization.tier_max_running = max_running
        organization.max_running = min(max_running, self._organization_ceiling)

    def take_free(self, queue: TenantQueue) -> bool:
        """Takes a slot if one is free and no request waits for the same pool."""
        organization = queue.organization
        if queue in organization.lines or not (
            self.running < self._max_running
            and organization.running < organization.max_running
            and queue.running < queue.slots
        ):
            return False
        self.running += 1
        organization.running += 1
        queue.running += 1
        return True

    async def acquire(self, queue: TenantQueue, deadline: Deadline) -> None:
        """Takes a slot, at once if one is free. Raises LimitError if none becomes free in time.

        Cancelling it gives up the place in the queue.
        """
        if not self.take_free(queue):
            await self._wait(queue, deadline)

    async def _wait(self, queue: TenantQueue, deadline: Deadline) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        may_wait_s = self.enqueue(queue, place, deadline)
        try:
            async with asyncio.timeout(may_wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.release(queue, 0.0)
            else:
                self.give_up(queue, place)
            if isinstance(error, TimeoutError):
                raise waited_too_long() from None
            raise

    def release(self, queue: TenantQueue, held_s: float) -> None:
        """Returns a slot and serves those who wait. `held_s` is how long it was used, 0 if that is not to count."""
        organization = queue.organization
        if held_s:
            self._mean_slot_s += _MEAN_WEIGHT * (held_s - self._mean_slot_s)
            organization.mean_slot_s += _MEAN_WEIGHT * (held_s - organization.mean_slot_s)
        self.running -= 1
        organization.running -= 1
        queue.running -= 1
        if self._round:
            self._serve_next()
        if queue.slots > queue.open_count:
            self._give_back_unused(queue)

    def _serve_next(self) -> None:
        if self.before_serving is not None:
            self.before_serving()
        self.serve()

    def _give_back_unused(self, queue: TenantQueue) -> None:
        if self._planner is not None:
            self._planner.give_back_unused(queue)

    def wanting(self) -> list[tuple[TenantQueue, int]]:
        """The databases whose requests could start now if they had more slots, and how many requests."""
        return [] if self.running >= self._max_running else self.lacking()

    def lacking(self) -> list[tuple[TenantQueue, int]]:
        """The databases whose requests wait, and have as many running as slots; and how many requests."""
        return [
            (queue, len(line))
            for organization in self._round
            if organization.running < organization.max_running
            for queue, line in organization.lines.items()
            if queue.running >= queue.slots and _first_waiting(line) is not None
        ]

    def start_one(self, queue: TenantQueue) -> None:
        """Starts the first waiting request of a database that has just got a slot, before all others."""
        place = _first_waiting(queue.organization.lines[queue])
        assert place is not None, "the slot was given for it"
        self._serve(queue, place)

    def is_short(self) -> bool:
        """Whether requests of a database wait that has no slot."""
        return any(queue.slots == 0 for organization in self._round for queue in organization.lines)

    def may_start(self, queue: TenantQueue) -> bool:
        """Whether a request could start now if its database had one more slot."""
        organization = queue.organization
        return self.running < self._max_running and organization.running < organization.max_running

    def release_with_penalty(self, queue: TenantQueue, held_s: float) -> None:
        """Returns a slot whose connection was lost: at once, or later if that happens again and again."""
        organization, now_s = queue.organization, self._clock()
        credit_s = _PENALTY_S * max(_LOST_AT_ONCE, organization.max_running)
        organization.paid_until_s = max(organization.paid_until_s, now_s - credit_s) + _PENALTY_S
        if organization.paid_until_s <= now_s:
            self.release(queue, held_s)
            return
        # The database is not to blame for longer: its slot is gone with its connection, and it may have others.
        queue.running -= 1
        delay_s = organization.paid_until_s - now_s
        self._call_later(delay_s, partial(self._end_penalty, organization))

    def _end_penalty(self, organization: OrganizationQueue) -> None:
        self.running -= 1
        organization.running -= 1
        if self._round:
            self._serve_next()

    def enqueue(self, queue: TenantQueue, place: Waiter, deadline: Deadline) -> float:
        """Puts a request into the queue. Returns how many seconds it may wait there; then call `give_up`.

        Raises LimitError if it could not start in time.
        """
        self._refuse_what_cannot_start(queue, deadline)
        organization = queue.organization
        organization.lines.setdefault(queue, deque()).append(place)
        organization.waiting += 1
        self._round.setdefault(organization)
        self.waiting += 1
        if self.on_wait is not None:
            self.on_wait(queue)
        return _may_wait_s(organization, deadline)

    def _step_out(self, queue: TenantQueue, place: Waiter) -> None:
        organization = queue.organization
        line = organization.lines[queue]
        line.remove(place)
        organization.waiting -= 1
        self.waiting -= 1
        if not line:
            del organization.lines[queue]
        if not organization.lines:
            del self._round[organization]

    def give_up(self, queue: TenantQueue, place: Waiter) -> None:
        """Takes a request out of the queue that has not got its slot."""
        self._step_out(queue, place)
        if queue in queue.organization.lines:
            # Slots that were released meanwhile passed this place over, and requests that came meanwhile wait behind it
            # although there is room. If no slot is left to be released, nothing else would ever serve them.
            self.serve()
        self._give_back_unused(queue)

    def serve(self) -> None:
        """Starts the waiting requests that can start now."""
        # An organization that was served goes to the back. One that its own or its pools' limits block keeps its place.
        # One released slot may make room for several requests, so go around until none has room.
        served = True
        while served:
            served = False
            for organization in list(self._round):
                if self.running >= self._max_running:
                    return
                if (found := _first_startable(organization)) is not None:
                    self._serve(*found)
                    served = True

    def _serve(self, queue: TenantQueue, place: Waiter) -> None:
        organization = queue.organization
        self._step_out(queue, place)
        if organization.lines:
            self._round.move_to_end(organization)
        if queue in organization.lines:
            organization.lines[queue] = organization.lines.pop(queue)
        self.running += 1
        organization.running += 1
        queue.running += 1
        place.set_result(None)

    def _slots_to_come(self, queue: TenantQueue) -> int:
        """How many slots a database will have soon: if all are given, no more than it has."""
        is_full = self._planner is not None and self._planner.granted >= self._planner.capacity
        return queue.slots if is_full else queue.max_slots

    def _refuse_what_cannot_start(self, queue: TenantQueue, deadline: Deadline) -> None:
        organization = queue.organization
        if self.waiting >= self._max_waiting or organization.waiting >= self._waiting_ceiling:
            raise overloaded("Too many requests are waiting for this database's cell.")
        parallel = max(1, min(self._max_running, organization.max_running, self._slots_to_come(queue)))
        ahead = organization.waiting + 1
        # If the cell has free slots, it waits only for its own organization's, however long the others hold theirs.
        waits_s = self._own_ahead(queue) * organization.mean_slot_s / parallel
        if self.running >= self._max_running:
            # Each request ahead of this one, and this one, waits for one of every other organization.
            requests = ahead * max(1, len(self._round))
            waits_s = max(waits_s, requests * self._mean_slot_s / self._max_running)
        if waits_s > _may_wait_s(organization, deadline):
            raise overloaded("The request could not start before its deadline.")

    def _own_ahead(self, queue: TenantQueue) -> int:
        """How many of its own organization's requests must end before another one of this database may start."""
        organization = queue.organization
        waiting = len(organization.lines.get(queue, ()))
        of_database = queue.running + waiting + 1 - max(1, self._slots_to_come(queue))
        of_organization = organization.running + organization.waiting + 1 - organization.max_running
        return max(0, of_database, of_organization)


def _may_wait_s(organization: OrganizationQueue, deadline: Deadline) -> float:
    # A request that starts too late to finish is wasted work, so time for two mean requests is kept back: at most half
    # of what is left, because this one may be short, and at least a fifth, because under load the response takes time
    # to reach the caller, whose clock goes on.
    left_s = deadline.left_s()
    return left_s - min(max(2 * organization.mean_slot_s, left_s / 5), left_s / 2)


def _first_startable(organization: OrganizationQueue) -> "tuple[TenantQueue, Waiter] | None":
    if organization.running >= organization.max_running:
        return None
    for queue, line in organization.lines.items():
        if queue.running < queue.slots:
            place = _first_waiting(line)
            if place is not None:
                return queue, place
    return None


def _first_waiting(line: "deque[Waiter]") -> Waiter | None:
    # A request that gave up stays in line until its task runs and removes it.
    return next((place for place in line if not place.done()), None)


def waited_too_long() -> LimitError:
    """The error for a request that has waited in the queue until its deadline came near."""
    return overloaded("No connection became free before the deadline.")


def overloaded(reason: str) -> LimitError:
    """The error for a request that cannot have a slot in time."""
    return LimitError("overloaded", reason, retryable=True, retry_after_ms=RETRY_AFTER_MS)
