"""The rate limiter. A permit allows an organization one request; all nodes together never exceed the tier's limit.

    permit = await permits.take(organization_id, limit)

Permits are leased from the shared ledger: Redis, or the directory if no Redis is configured. For busy organizations
they are leased in advance, so most requests find a permit in this process. While the ledger is unavailable, each
process enforces its share of the limit, and reports that it does. It never lets requests through unlimited.
"""

import asyncio
import random
import time
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from itertools import islice

from plainsql_server.core.clock import now
from plainsql_server.core.errors import EngineError
from plainsql_server.core.observation import LimiterChanged, LimiterLoad, Observe
from plainsql_server.core.share import WHOLE, Share
from plainsql_server.limits.account import Permit, PermitAccount
from plainsql_server.limits.ledger import Ask, Granted, LedgerKind, LedgerSource, PermitLedger, SharedLedgerLost
from plainsql_server.limits.window import Window

MINUTE = Window(60_000)
_ALL = Fraction(1)
# After a failure: then twice as long each time, up to the second, and at random, so processes don't come all at once.
_RECONNECT_AFTER_S = 0.25
_RECONNECT_MOST_S = 2.0
# More accounts are asked for by the next question. Its answer is in time only if the ledger can give it within a slot.
_MOST_AT_ONCE = 100
# Shows that the ledger answers and can write. One permit, of an organization that doesn't exist.
_PROBE = Ask("", 1, 0, 0, 1, ())


class PermitSource(StrEnum):
    """The source of permits."""

    ALONE = "alone"
    """The ledger has not been asked yet: each process grants its share."""
    SHARED = "shared"
    """The ledger grants permits."""
    LOST = "lost"
    """The ledger is unavailable: each process grants its share."""
    WARMING = "warming"
    """Redis is back but lost its data: each process grants its share, until Redis has seen a whole window."""


class Permits:
    """The permits that this process grants: leased from the ledger, or its share of its plane's part of each limit."""

    def __init__(
        self, observe: Observe, share: Share, part: Fraction = _ALL, window: Window = MINUTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._observe = observe
        self._share = share
        self._part = part
        self._window = window
        self._clock = clock
        self.accounts: dict[str, PermitAccount] = {}
        self.state = PermitSource.ALONE
        self._warm_at_s = 0.0
        # Accounts with something to request or report, oldest first.
        self._asking: dict[PermitAccount, None] = {}
        self._there_is_work = asyncio.Event()
        self._stopping = asyncio.Event()
        self._kind = LedgerKind.REDIS
        self._known_run: str | None = None
        # Whether the ledger has granted something since it has been the source.
        self._has_granted = False
        self._reconnect_s = _RECONNECT_AFTER_S
        # Accounts with a lease, which may expire unused.
        self._leased: dict[PermitAccount, None] = {}
        self._swept_s = 0.0
        self._forgot_s = clock()
        self.round_trips = 0
        self._given: dict[str, int] = {"shared": 0, "share": 0}

    async def take(self, organization_id: str, limit: int) -> Permit:
        """A permit or a refusal. Waits for the ledger, but only briefly. Cancelling it leaves the queue."""
        return self.take_now(organization_id, limit) or await self._take(organization_id, limit)

    def take_now(self, organization_id: str, limit: int) -> Permit | None:
        """A permit if there is one without waiting; None otherwise, whether `take` refuses or grants one."""
        permit = self.take_held(organization_id)
        if permit is None and self.state is not PermitSource.SHARED:
            permit = self._take_of_share(self._account(organization_id, limit))
        return permit if permit is not None and permit.granted else None

    def take_held(self, organization_id: str) -> Permit | None:
        """A permit that this process already holds, if it does. `lane/permit.pyx` has a faster form of this."""
        account = self.accounts.get(organization_id)
        if account is None:
            return None
        now_s = self._clock()
        if not account.take_held(now_s):
            return None
        if account.held <= account.refill_at and account.wants_refill() and self.state is PermitSource.SHARED:
            self._ask(account)
        return account.grant(account.left + account.held, now_s)

    async def _take(self, organization_id: str, limit: int) -> Permit:
        account = self._account(organization_id, limit)
        if self.state is not PermitSource.SHARED:
            return self._take_of_share(account)
        now_s = self._clock()
        if now_s < account.refused_until_s:
            return account.refusal(now_s)
        place: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        account.waiting.append(place)
        if not account.is_asking:
            # Otherwise, the pending answer serves this request or asks again. A second question would ask for nothing,
            # and make the next lease smaller: the size of a lease depends on the use since the last question.
            self._ask(account)
        return await place

    async def keep_in_touch(self, source: LedgerSource, tried: asyncio.Event) -> None:
        """Talks to the ledger until `stop`. Sets `tried` after the first attempt to connect."""
        self._kind = source.kind
        while not self._stopping.is_set():
            try:
                async with source.open(self._window) as shared:
                    await self._begin(shared)
                    tried.set()
                    while not self._stopping.is_set():
                        await self._settle(shared)
                    await self._return_all(shared)
                    return
            except SharedLedgerLost as error:
                self.go_by_shares(str(error))
            except Exception as error:
                # Whatever went wrong, waiting requests must be answered.
                self.go_by_shares(f"{type(error).__name__}: {error}")
            tried.set()
            await asyncio.sleep(self._reconnect_s * random.uniform(0.5, 1.0))
            self._reconnect_s = min(2 * self._reconnect_s, _RECONNECT_MOST_S)

    def go_by_shares(self, reason: str) -> None:
        """Grants permits by this process' share, because the ledger does not answer."""
        self._enter(PermitSource.LOST, reason)
        self._asking = {}
        # Not only those that ask: an answer that failed midway leaves others waiting.
        for account in self.accounts.values():
            account.is_asking = False
            self._serve_of_share(account)

    def stop(self) -> None:
        """Makes `keep_in_touch` return what is leased, and end."""
        self._stopping.set()
        self._there_is_work.set()

    async def check(self) -> None:
        """Raises EngineError if the ledger does not grant the permits."""
        if self.state in (PermitSource.LOST, PermitSource.WARMING):
            name = "Redis" if self._kind is LedgerKind.REDIS else "The directory"
            raise EngineError(
                "degraded", f"{name} does not decide rate limits at the moment; each process enforces its own share."
            )

    def load(self) -> LimiterLoad:
        """The load, for the metrics."""
        is_degraded = self.state in (PermitSource.LOST, PermitSource.WARMING)
        return LimiterLoad(
            is_degraded, self.round_trips, {self._kind: self._given["shared"], "share": self._given["share"]},
            processes=self._share.processes, share=round(self._share.held / WHOLE, 6),
        )  # fmt: skip

    def _account(self, organization_id: str, limit: int) -> PermitAccount:
        account = self.accounts.get(organization_id)
        if account is None:
            self._forget_the_idle()
            account = self.accounts[organization_id] = PermitAccount(organization_id, limit, self._window)
        account.limit = limit
        return account

    def _ask(self, account: PermitAccount) -> None:
        account.is_asking = True
        self._asking[account] = None
        self._there_is_work.set()

    def _take_of_share(self, account: PermitAccount) -> Permit:
        now_s = self._clock()
        # At least one, or an organization with a small limit could not use a service with many processes.
        share = max(1, self._share.granting_part_of(int(account.limit * self._part)))
        left = share - account.ledger.used(now_s)
        if left > 0:
            account.ledger.add(1, now_s)
            self._given["share"] += 1
            if self.state is not PermitSource.ALONE:
                account.untold += 1
            if self.state is PermitSource.WARMING:
                self._ask(account)
        return Permit(left > 0, max(0, left - 1), account.ledger.next_back_s(now_s))

    async def _begin(self, shared: PermitLedger) -> None:
        if self._known_run not in (None, shared.run_id):
            # Redis was restarted and may have lost its data. The other processes must know that, too.
            await shared.begin_warming()
        self._known_run = shared.run_id
        # A ledger may accept connections, and yet be full or read-only.
        (answer,) = await shared.settle([_PROBE])
        if answer.warming_ms >= 0:
            self._warm(self._clock() + answer.warming_ms / 1000)
        for account in self.accounts.values():
            if account.untold or account.returned:
                self._ask(account)
        while self._asking and self.state is not PermitSource.WARMING:
            await self._exchange(shared)
        self._reconnect_s = _RECONNECT_AFTER_S
        if self.state is not PermitSource.WARMING:
            self._enter(PermitSource.SHARED)

    async def _settle(self, shared: PermitLedger) -> None:
        """One cycle: waits for work or sweeps idle leases, then handles what is pending in one round trip."""
        try:
            async with asyncio.timeout(max(self._window.life_s, _RECONNECT_AFTER_S)):
                await self._there_is_work.wait()
        except TimeoutError:
            self._sweep()
        if self._clock() - self._swept_s > self._window.life_s:
            self._sweep()
        await self._exchange(shared)
        if self.state is PermitSource.WARMING and self._clock() >= self._warm_at_s:
            self._enter(PermitSource.SHARED)

    async def _exchange(self, shared: PermitLedger) -> None:
        accounts = list(islice(self._asking, _MOST_AT_ONCE))
        for account in accounts:
            del self._asking[account]
        if not self._asking:
            self._there_is_work.clear()
        sent_s = self._clock()
        asks = [account.ask(sent_s) for account in accounts]
        try:
            granted = await shared.settle(asks)
        except BaseException:
            # It is unknown whether the ledger received this. Report granted permits again, but don't return permits
            # again: then an error never allows too many requests.
            for account, ask in zip(accounts, asks, strict=True):
                account.untold += ask.given
            self._asking = dict.fromkeys([*accounts, *self._asking])
            raise
        self.round_trips += 1
        for account, answer in zip(accounts, granted, strict=True):
            self._hear(account, answer, sent_s)

    def _hear(self, account: PermitAccount, granted: Granted, sent_s: float) -> None:
        account.is_asking = False
        now_s = self._clock()
        account.left = granted.left
        account.more_at_s = now_s + (granted.back_ms if granted.back_ms >= 0 else self._window.length_ms) / 1000
        if granted.warming_ms >= 0:
            self._warm(now_s + granted.warming_ms / 1000)
            self._serve_of_share(account)
            return
        if granted.granted:
            account.ledger.add(granted.granted, now_s)
            self._given["shared"] += granted.granted
            self._has_granted = self.state is PermitSource.SHARED
        self._serve(account, granted, sent_s)

    def _serve(self, account: PermitAccount, granted: Granted, sent_s: float) -> None:
        now_s = self._clock()
        free = granted.granted
        while free and account.waiting:
            place = account.waiting.popleft()
            if not place.done():
                free -= 1
                account.used += 1
                place.set_result(account.grant(account.left + free, now_s))
        if granted.granted and now_s >= sent_s + self._window.life_s:
            self._count_anew(account, granted, granted.granted - free)
        elif free:
            # The lease starts when it was requested, because it can't have been debited earlier.
            account.lease(free, sent_s + self._window.life_s, granted.slot)
            self._leased[account] = None
        if granted.granted < account.needed:
            self._refuse(account)
        elif account.waiting:
            self._ask(account)

    def _count_anew(self, account: PermitAccount, granted: Granted, used: int) -> None:
        """Returns permits that came late, because the ledger or this process stalled, and reports those used as new.

        In the slot in which they were debited, they would stop counting too early. To ask again instead could go on
        for ever.
        """
        account.returned.append((granted.slot, granted.granted))
        account.untold += used
        self._ask(account)

    def _refuse(self, account: PermitAccount) -> None:
        # Refuse locally for a while, so that a flood of refused requests doesn't flood the ledger.
        now_s = self._clock()
        account.refused_until_s = min(account.more_at_s, now_s + self._window.life_s)
        while account.waiting:
            place = account.waiting.popleft()
            if not place.done():
                place.set_result(account.refusal(now_s))

    def _serve_of_share(self, account: PermitAccount) -> None:
        while account.waiting:
            place = account.waiting.popleft()
            if not place.done():
                place.set_result(self._take_of_share(account))

    def _warm(self, until_s: float) -> None:
        self._warm_at_s = until_s
        self._enter(PermitSource.WARMING)

    def _sweep(self) -> None:
        """Returns leases that expired unused."""
        self._swept_s = now_s = self._clock()
        for account in list(self._leased):
            account.drop_expired(now_s)
            if not account.held and account.next_lease is None:
                del self._leased[account]
            if account.returned:
                self._ask(account)

    async def _return_all(self, shared: PermitLedger) -> None:
        """Returns every lease, because it is no longer used."""
        for account in self._leased:
            account.drop_all()
            self._ask(account)
        while self._asking:
            await self._exchange(shared)

    def _forget_the_idle(self) -> None:
        """Removes idle accounts, once per window."""
        now_s = self._clock()
        if now_s - self._forgot_s > self._window.length_ms / 1000:
            self._forgot_s = now_s
            self.accounts = {name: each for name, each in self.accounts.items() if not each.is_idle(now_s)}

    def _enter(self, state: PermitSource, context: str | None = None) -> None:
        if state is not self.state:
            if self._has_granted:
                # What was granted until now was counted for all processes.
                self._share.begin_granting()
                self._has_granted = False
            self.state = state
            self._observe(LimiterChanged(now(), "limiter", state, context))
