"""Without Redis: the permits that this process has leased from the directory, organization by organization.

    leases = Leases(share)
    permit = leases.take(account)                     # None: the lease is used up
    leases.grow(account)                              # so that the next renewal asks for more

    asks = leases.asks()                              # sent with a renewal of the process' row
    leases.hear(answers, is_listed_anew=False)        # or leases.fail()

A lease is a number of permits: this process grants at most so many in any window, from when it has the lease until it
has given it back. In the directory, the leases of an organization never add up to more than its limit. That is all:
the number of processes does not matter for the limit, only for how much each leases in advance.

- A lease grows after the directory has answered, and becomes smaller before it is asked.
- It is never made smaller than what was granted in the last window.
- If the process can't renew its row, it grants nothing before the row expires (`Share.is_current`). Its leases count
  until the last permits have left the window, and are deleted then.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import islice

from plainsql_server.core.share import Share
from plainsql_server.limits.account import Permit, PermitAccount
from plainsql_server.limits.ledger import LeaseAsk

# How often unused permits are given back.
REVIEW_S = 2.0
# How long no more is asked for an organization for which the directory has no permits left.
_REFUSED_S = 1.0
# A statement asks for so many organizations at most, so that it is short.
_MOST_ASKS = 100
# How many leases are looked through at once.
_MOST_REVIEWED = 500
# A process that is in use keeps this part of the limit in advance.
_KEPT_PART = 20


class Leases:
    """The leases of one process, and what it asks the directory."""

    def __init__(self, share: Share, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self.there_is_work = asyncio.Event()
        # Accounts with a lease, those reviewed longest ago first; those that want more; and those that have asked.
        self._leased: dict[PermitAccount, None] = {}
        self._growing: dict[PermitAccount, None] = {}
        self._asked: list[tuple[PermitAccount, LeaseAsk]] = []
        self._reviewed_s = clock()
        self._is_failing = False
        self.granted = 0

    def take(self, account: PermitAccount) -> Permit | None:
        """A permit of the lease, if it has one left."""
        now_s = self._clock()
        unused = account.leased - account.ledger.used(now_s) if self._share.is_current else 0
        if unused <= 0:
            return None
        account.ledger.add(1, now_s)
        account.used += 1
        self.granted += 1
        if unused <= account.refill_at and (account.left or now_s >= account.asked_s + _REFUSED_S):
            self.grow(account)
        return Permit(True, account.left + unused - 1, account.ledger.next_back_s(now_s))

    def must_refuse(self, account: PermitAccount) -> bool:
        """Whether it is of no use to ask the directory now."""
        return self._is_failing or self._clock() < account.refused_until_s or not self._share.is_current

    def refusal(self, account: PermitAccount) -> Permit:
        """A refusal, with the longest possible wait. While the directory is away, nobody knows."""
        is_unreachable = self._is_failing or not self._share.is_current
        wait_s = _REFUSED_S if is_unreachable else account.ledger.next_back_s(self._clock())
        return Permit(False, 0, wait_s)

    def grow(self, account: PermitAccount) -> None:
        """Asks for more with the next renewal, which begins soon."""
        if not account.is_asking:
            account.is_asking = True
            self._growing[account] = None
            self.there_is_work.set()

    def asks(self) -> list[LeaseAsk]:
        """What to ask with a renewal. Then call `hear` or `fail`."""
        self.there_is_work.clear()
        growing = list(islice(self._growing, _MOST_ASKS))
        for account in growing:
            del self._growing[account]
        if self._growing:
            self.there_is_work.set()
        self._asked = [(account, self._more(account)) for account in growing]
        if self._clock() >= self._reviewed_s + REVIEW_S:
            self._reviewed_s = self._clock()
            self._review()
        return [ask for _, ask in self._asked]

    def hear(self, answers: Sequence[tuple[int, int]], *, is_listed_anew: bool) -> None:
        """Takes the answers: how many permits are leased in addition, and how many are left for others.

        A process that is listed anew has lost its leases, and has granted nothing for a window.
        """
        self._is_failing = False
        if is_listed_anew:
            for account in self._leased:
                account.leased = 0
            self._leased.clear()
        asked, self._asked = self._asked, []
        for (account, ask), (granted, left) in zip(asked, answers, strict=True):
            account.is_asking = False
            account.leased = (0 if is_listed_anew else ask.kept) + granted
            account.left, account.asked_s = left, self._clock()
            if granted:
                account.refill_at = max(1, granted // 4)
            if account.leased:
                self._leased[account] = None
            else:
                self._leased.pop(account, None)
            self._serve(account, is_enough=granted >= ask.needed)

    def fail(self) -> None:
        """Notes that it is not known what the directory did. It is asked again, and may have leased more than is used.

        Requests that wait are refused, and so are further ones, until the directory answers.
        """
        self._is_failing = True
        for account, _ in self._asked:
            self._growing[account] = None
        self._asked = []
        for account in self._growing:
            self._serve(account, is_enough=False)

    def _more(self, account: PermitAccount) -> LeaseAsk:
        needed = sum(not place.done() for place in account.waiting)
        return LeaseAsk(account.name, account.limit, account.leased, needed, ahead=True)

    def _review(self) -> None:
        for account in list(islice(self._leased, _MOST_REVIEWED)):
            # To the end of the line.
            del self._leased[account]
            self._leased[account] = None
            if not account.is_asking and len(self._asked) < _MOST_ASKS:
                self._give_back(account)

    def _give_back(self, account: PermitAccount) -> None:
        """Keeps what was granted, and what will probably be needed until the next review."""
        part = account.limit // _KEPT_PART if account.used else 0
        keep = account.ledger.used(self._clock()) + 2 * account.used + part
        account.used = 0
        if account.leased - keep > part:
            account.leased, account.is_asking, account.refill_at = keep, True, 1
            self._asked.append((account, LeaseAsk(account.name, account.limit, keep, 0, ahead=False)))

    def _serve(self, account: PermitAccount, *, is_enough: bool) -> None:
        while account.waiting:
            place = account.waiting[0]
            permit = None if place.done() else self.take(account)
            if permit is None and not place.done():
                break
            account.waiting.popleft()
            if permit is not None:
                place.set_result(permit)
        if account.waiting and is_enough:
            self.grow(account)
        elif account.waiting:
            # Refuse locally for a while, so that a flood of refused requests doesn't flood the directory.
            account.refused_until_s = self._clock() + _REFUSED_S
            while account.waiting:
                place = account.waiting.popleft()
                if not place.done():
                    place.set_result(self.refusal(account))
