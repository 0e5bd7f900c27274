"""Who may run a statement on a cell now, and who waits.

Owns fairness and overload. A turn is the right to use one connection. Turns are given to organizations
one after the other, whatever each has waiting, so that nobody is kept out by somebody else's many
requests; turns that cost connections again and again last until that is paid for. What cannot start in
time, or finds the queue full, is refused at once: an early 'no' is worth more than a late one. Refuses
to know connections; see `pool.py`.
"""

import asyncio
import time
from collections import OrderedDict, deque

from plainsql_server.core.clock import Deadline
from plainsql_server.core.errors import LimitError

# How much of the newest measurement goes into the mean time that a turn takes.
_MEAN_WEIGHT = 0.02
# What is believed of turns until some were seen.
_FIRST_MEAN_S = 0.001
_RETRY_AFTER_MS = 1_000
# How long a turn that has cost its connection lasts on: so an organization has five of them replaced in a second.
# Opening one takes the cell's processors for some milliseconds, and what runs on a new one is not seen at once by the
# guard of the cell (`operations/priorities.py`).
_LOSS_COSTS_S = 0.2
# Those that may be lost at once, or all that the organization has: a server that restarts takes them all.
_LOST_AT_ONCE = 8


class Organization:
    """One organization at the gate: how many turns it has, how many it may have, and who of it waits."""

    __slots__ = ("lines", "max_running", "mean_turn_s", "name", "paid_until_s", "running", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = 0
        self.max_running = 0
        self.waiting = 0
        self.mean_turn_s = _FIRST_MEAN_S
        # When the connections that its turns have cost are paid for.
        self.paid_until_s = 0.0
        # Who waits, by pool, so that a full pool does not hold up the others. No line in it is empty.
        self.lines: dict[Party, deque[asyncio.Future[None]]] = {}


class Party:
    """For whom turns are taken: the users of one pool, who belong to one organization."""

    __slots__ = ("max_running", "organization", "running")

    def __init__(self, organization: Organization, max_running: int) -> None:
        self.organization = organization
        self.max_running = max_running
        self.running = 0

    @property
    def is_here(self) -> bool:
        """Whether it has a turn or waits for one."""
        return self.running > 0 or self in self.organization.lines


class Gate:
    """The turns of one cell. All of its counts are of turns that are taken now."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        # No organization may hold more than half of the turns, so that a second one always finds room.
        self._organization_ceiling = max(1, max_running // 2)
        # Nor more than half of the places in the queue, for the same reason.
        self._waiting_ceiling = max(1, max_waiting // 2)
        self._organizations: dict[str, Organization] = {}
        # The round: organizations that wait, the one whose turn is next at the front.
        self._round: OrderedDict[Organization, None] = OrderedDict()
        self._mean_turn_s = _FIRST_MEAN_S
        self.running = 0
        self.waiting = 0

    def party(self, organization_id: str, max_running: int) -> Party:
        """A new party of an organization, which may have `max_running` turns at once."""
        organization = self._organizations.get(organization_id)
        if organization is None:
            organization = self._organizations[organization_id] = Organization(organization_id)
        return Party(organization, max_running)

    def forget_the_idle(self, in_use: set[Organization]) -> None:
        """Drops organizations that have no pool any more."""
        self._organizations = {org.name: org for org in self._organizations.values() if org in in_use or org.lines}

    def limit(self, party: Party, max_running: int) -> None:
        """Sets how many turns the party's organization may have, as its tier says now."""
        party.organization.max_running = min(max_running, self._organization_ceiling)

    def try_enter(self, party: Party) -> bool:
        """Takes a turn if one is free and nobody waits for the same pool."""
        organization = party.organization
        if party in organization.lines or not (
            self.running < self._max_running
            and organization.running < organization.max_running
            and party.running < party.max_running
        ):
            return False
        self.running += 1
        organization.running += 1
        party.running += 1
        return True

    async def enter(self, party: Party, deadline: Deadline) -> None:
        """Waits for a turn. Raises LimitError when it cannot come in time; cancelling it gives up the place."""
        if self.try_enter(party):
            return
        self._refuse_what_cannot_start(party, deadline)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stand_in_line(party, place)
        try:
            async with asyncio.timeout(_may_wait_s(party.organization, deadline)):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.leave(party, 0.0)
            else:
                self._give_up(party, place)
            if isinstance(error, TimeoutError):
                raise overloaded("No connection became free before the deadline.") from None
            raise

    def leave(self, party: Party, started_s: float) -> None:
        """Ends a turn (begun at `started_s`; 0 if it was not used) and gives what is free now to those who wait."""
        organization = party.organization
        if started_s:
            took_s = time.monotonic() - started_s
            self._mean_turn_s += _MEAN_WEIGHT * (took_s - self._mean_turn_s)
            organization.mean_turn_s += _MEAN_WEIGHT * (took_s - organization.mean_turn_s)
        self.running -= 1
        organization.running -= 1
        party.running -= 1
        if self._round:
            self._serve_waiting()

    def leave_at_a_loss(self, party: Party, started_s: float) -> None:
        """Ends a turn that has cost its connection: at once, or later where that happens again and again."""
        organization, now_s = party.organization, time.monotonic()
        credit_s = _LOSS_COSTS_S * max(_LOST_AT_ONCE, organization.max_running)
        organization.paid_until_s = max(organization.paid_until_s, now_s - credit_s) + _LOSS_COSTS_S
        if organization.paid_until_s <= now_s:
            self.leave(party, started_s)
        else:
            asyncio.get_running_loop().call_later(organization.paid_until_s - now_s, self.leave, party, 0.0)

    def _stand_in_line(self, party: Party, place: "asyncio.Future[None]") -> None:
        organization = party.organization
        organization.lines.setdefault(party, deque()).append(place)
        organization.waiting += 1
        self._round.setdefault(organization)
        self.waiting += 1

    def _step_out(self, party: Party, place: "asyncio.Future[None]") -> None:
        organization = party.organization
        line = organization.lines[party]
        line.remove(place)
        organization.waiting -= 1
        self.waiting -= 1
        if not line:
            del organization.lines[party]
        if not organization.lines:
            del self._round[organization]

    def _give_up(self, party: Party, place: "asyncio.Future[None]") -> None:
        self._step_out(party, place)
        if party in party.organization.lines:
            # Turns that ended since passed this place over, and who came since stands behind it though there is room:
            # if no turn is left to end, nobody else would ever serve them.
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        # An organization that is served goes to the back; one that is blocked by its own limits or its pools' keeps
        # its place for the next time. One end of a turn may make room for several, so around until nobody has any.
        served = True
        while served:
            served = False
            for organization in list(self._round):
                if self.running >= self._max_running:
                    return
                if (found := _first_with_room(organization)) is not None:
                    self._serve(*found)
                    served = True

    def _serve(self, party: Party, place: "asyncio.Future[None]") -> None:
        organization = party.organization
        self._step_out(party, place)
        if organization.lines:
            self._round.move_to_end(organization)
        if party in organization.lines:
            organization.lines[party] = organization.lines.pop(party)
        self.running += 1
        organization.running += 1
        party.running += 1
        place.set_result(None)

    def _refuse_what_cannot_start(self, party: Party, deadline: Deadline) -> None:
        organization = party.organization
        if self.waiting >= self._max_waiting or organization.waiting >= self._waiting_ceiling:
            raise overloaded("Too many requests wait for this database's cell.")
        parallel = max(1, min(self._max_running, organization.max_running, party.max_running))
        ahead, mean_turn_s = organization.waiting + 1, organization.mean_turn_s
        if self.running >= self._max_running:
            # In a fair round, each of ours that is ahead waits for one of every other organization's. Otherwise only
            # our own are waited for, however long strangers' turns take.
            ahead, mean_turn_s = ahead * max(1, len(self._round)), self._mean_turn_s
        if ahead * mean_turn_s / parallel > _may_wait_s(organization, deadline):
            raise overloaded("The request could not start before its deadline.")


def _may_wait_s(organization: Organization, deadline: Deadline) -> float:
    # Who starts too late to finish is work for nothing.
    # Where turns are long in the mean, half of the time is left to wait: the next statement may be a short one. A fifth
    # is never waited away: under load the way to the caller takes time, too, and the caller's clock goes on.
    left_s = deadline.left_s()
    return left_s - min(max(2 * organization.mean_turn_s, left_s / 5), left_s / 2)


def _first_with_room(organization: Organization) -> "tuple[Party, asyncio.Future[None]] | None":
    if organization.running >= organization.max_running:
        return None
    for party, line in organization.lines.items():
        if party.running < party.max_running:
            # Who gave up stands in line until its task gets to run, and steps out by itself.
            place = next((place for place in line if not place.done()), None)
            if place is not None:
                return party, place
    return None


def overloaded(reason: str) -> LimitError:
    """What those are told who cannot have a turn in time."""
    return LimitError("overloaded", reason, retryable=True, retry_after_ms=_RETRY_AFTER_MS)
