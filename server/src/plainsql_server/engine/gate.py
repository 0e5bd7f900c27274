"""Who may run a statement on a cell now, and who waits.

Owns fairness and overload. A turn is the right to use one connection. Turns are given to organizations
one after the other, whatever each has waiting, so that nobody is kept out by somebody else's many
requests. What cannot start in time, or finds the queue full, is refused at once: an early 'no' is worth
more than a late one. Refuses to know connections; see `pool.py`.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError

# How much of the newest measurement goes into the mean time that a turn takes.
_MEAN_WEIGHT = 0.02
_RETRY_AFTER_MS = 1_000

_Counted = TypeVar("_Counted", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Party:
    """For whom a statement runs: the organization with its limit, and the pool with its own."""

    organization_id: str
    organization_limit: int
    pool: Hashable
    pool_limit: int


@dataclass(slots=True)
class Turn:
    """The right to use one connection, from `enter` to `leave`."""

    party: Party
    started_s: float


@dataclass(slots=True)
class _Waiting:
    """One organization's line. It stands in the round only while it has somebody in it."""

    line: deque[tuple[Party, "asyncio.Future[Turn]"]] = field(default_factory=deque)


class Gate:
    """The turns of one cell. All of its counts are of turns that are taken now."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        # No organization may hold more than half of the turns, so that a second one always finds room.
        self._organization_ceiling = max(1, max_running // 2)
        self._running_by_organization: dict[str, int] = {}
        self._running_by_pool: dict[Hashable, int] = {}
        # The round: organizations that wait, the one whose turn is next at the front.
        self._round: OrderedDict[str, _Waiting] = OrderedDict()
        self._mean_turn_s = 0.001
        self.running = 0
        self.waiting = 0

    def try_enter(self, party: Party) -> Turn | None:
        """A turn if one is free and nobody of the same organization waits, else None."""
        if party.organization_id in self._round or not self._has_room(party):
            return None
        return self._begin(party)

    async def enter(self, party: Party, deadline: Deadline) -> Turn:
        """A turn, waited for. Raises LimitError when it cannot come in time; cancelling it gives up the place."""
        if (turn := self.try_enter(party)) is not None:
            return turn
        self._refuse_what_cannot_start(party, deadline)
        place: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._round.setdefault(party.organization_id, _Waiting()).line.append((party, place))
        self.waiting += 1
        try:
            async with asyncio.timeout(deadline.left_s()):
                return await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.leave(place.result())
            else:
                self._step_out(party, place)
            if isinstance(error, TimeoutError):
                raise _overloaded("No connection became free before the deadline.") from None
            raise

    def leave(self, turn: Turn) -> None:
        """Ends a turn and gives what is free now to those who wait."""
        self._mean_turn_s += _MEAN_WEIGHT * (time.monotonic() - turn.started_s - self._mean_turn_s)
        self._count(turn.party, -1)
        if self._round:
            self._serve_waiting()

    def _has_room(self, party: Party) -> bool:
        held = self._running_by_organization.get(party.organization_id, 0)
        return (
            self.running < self._max_running
            and held < min(party.organization_limit, self._organization_ceiling)
            and self._running_by_pool.get(party.pool, 0) < party.pool_limit
        )

    def _begin(self, party: Party) -> Turn:
        self._count(party, +1)
        return Turn(party, time.monotonic())

    def _count(self, party: Party, change: int) -> None:
        self.running += change
        _change(self._running_by_organization, party.organization_id, change)
        _change(self._running_by_pool, party.pool, change)

    def _serve_waiting(self) -> None:
        # Once around at most: an organization that is served goes to the back, one that is blocked by its
        # own limits or its pool's keeps its place for the next time.
        for organization_id in list(self._round):
            if self.running >= self._max_running:
                return
            line = self._round[organization_id].line
            party, place = line[0]
            if self._has_room(party):
                self._take_from_line(organization_id, (party, place))
                if organization_id in self._round:
                    self._round.move_to_end(organization_id)
                if not place.done():
                    place.set_result(self._begin(party))

    def _step_out(self, party: Party, place: "asyncio.Future[Turn]") -> None:
        self._take_from_line(party.organization_id, (party, place))

    def _take_from_line(self, organization_id: str, entry: "tuple[Party, asyncio.Future[Turn]]") -> None:
        waiting = self._round[organization_id]
        waiting.line.remove(entry)
        self.waiting -= 1
        if not waiting.line:
            del self._round[organization_id]

    def _refuse_what_cannot_start(self, party: Party, deadline: Deadline) -> None:
        waiting = self._round.get(party.organization_id)
        ahead = len(waiting.line) if waiting else 0
        if self.waiting >= self._max_waiting:
            raise _overloaded("Too many requests wait for this database's cell.")
        # In a fair round, each of ours that is ahead waits for one of every other organization's.
        expected_s = (ahead + 1) * max(1, len(self._round)) * self._mean_turn_s / self._parallel(party)
        if expected_s > deadline.left_s():
            raise _overloaded("The request could not start before its deadline.")

    def _parallel(self, party: Party) -> int:
        return max(1, min(self._max_running, party.organization_limit, self._organization_ceiling, party.pool_limit))


def _change(counts: dict[_Counted, int], key: _Counted, change: int) -> None:
    # What nobody uses is not kept, or every organization ever seen would stay in memory.
    if left := counts.get(key, 0) + change:
        counts[key] = left
    else:
        del counts[key]


def _overloaded(reason: str) -> LimitError:
    return LimitError("overloaded", reason, retryable=True, retry_after_ms=_RETRY_AFTER_MS)
