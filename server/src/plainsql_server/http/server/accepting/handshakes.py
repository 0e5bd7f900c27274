"""The TLS handshakes under way in this process: how many there may be, and what became of them.

    handshakes.begin(handshake)
    …
    handshakes.end(handshake)

Where there are too many, the oldest one of the address with the most makes way: a client's handshake takes some
milliseconds, a silent socket stays.
"""

import asyncio
from collections import Counter
from typing import Protocol

from plainsql_server.core.clock import now
from plainsql_server.core.observation import FailureObserved, HandshakeLoad, Observe

# In one process; fewer if it may have few connections.
MAX_HANDSHAKES = 1_000
_LOOK_EVERY_S = 1.0
_REPORT_EVERY_S = 60.0
# What is reported, and what is only counted. Those fail all the time: a load balancer's probes connect and say nothing
# more, and people forget the s of https.
_OTHERS = ("refused", "plain_http")
_REPORTED = {
    "timeout": "took too long",
    "process": "made way for others: the process has too many at once",
    "address": "made way for others from the same address",
    "descriptors": "had to wait, because the process has no file descriptor left",
}


class UnderWay(Protocol):
    """A connection whose handshake is under way."""

    address: str

    def shutdown(self) -> None:
        """Closes the connection."""


class Handshakes:
    """The handshakes under way, by address in the order in which they began."""

    def __init__(self, per_address: int, total: int) -> None:
        """A `per_address` of 0 means no limit per address."""
        self._per_address = per_address
        self._total = total
        self._under_way: set[UnderWay] = set()
        self._by_address: dict[str, dict[UnderWay, None]] = {}
        # Handshakes that did not succeed, by reason.
        self.failed: Counter[str] = Counter()

    def load(self) -> HandshakeLoad:
        """The state for the metrics."""
        return HandshakeLoad(len(self._under_way), {reason: self.failed[reason] for reason in (*_REPORTED, *_OTHERS)})

    def begin(self, handshake: UnderWay) -> None:
        """Registers a handshake. If there are too many, closes one."""
        of_address = self._by_address.setdefault(handshake.address, {})
        self._under_way.add(handshake)
        of_address[handshake] = None
        if 0 < self._per_address < len(of_address):
            self._close(next(iter(of_address)), "address")
        elif len(self._under_way) > self._total:
            most = max(self._by_address.values(), key=len)
            self._close(next(iter(most)), "process")

    def end(self, handshake: UnderWay) -> None:
        """Unregisters a handshake, if it has not made way for another one before."""
        self._under_way.discard(handshake)
        of_address = self._by_address.get(handshake.address, {})
        of_address.pop(handshake, None)
        if not of_address:
            self._by_address.pop(handshake.address, None)

    def _close(self, handshake: UnderWay, reason: str) -> None:
        self.failed[reason] += 1
        self.end(handshake)
        handshake.shutdown()

    async def report(self, observe: Observe, every_s: float = _REPORT_EVERY_S) -> None:
        """Reports handshakes that did not succeed, at most once a minute. Never returns."""
        reported = Counter[str]()
        while True:
            await asyncio.sleep(min(_LOOK_EVERY_S, every_s))
            new = self.failed - reported
            counts = "; ".join(f"{new[reason]:,} {text}" for reason, text in _REPORTED.items() if new[reason])
            if counts:
                reported += new
                observe(FailureObserved(now(), "failure", "http.handshakes", f"TLS handshakes: {counts}"))
                await asyncio.sleep(every_s)
