"""Whether a process still wants requests.

Owns the first step of a stop: from the moment it is asked for, health checks fail and answers close their
connections, so that load balancers and clients look elsewhere, while every request that comes all the same
is answered. Only after that does the server stop to listen.
"""

import asyncio
import signal
from types import FrameType


class Readiness:
    """Shared by what is told to stop and by what answers."""

    def __init__(self, drain_ms: int) -> None:
        self.draining = False
        self._drain_s = drain_ms / 1000

    def heed_signals(self) -> None:
        """Puts draining before what the server does on a signal. Called when the server has its handlers in place."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            servers_own = signal.getsignal(number)
            if not callable(servers_own):
                continue

            def stop(sig: int, frame: FrameType | None, then: object = servers_own) -> None:
                assert callable(then)
                if self.draining or not self._drain_s:
                    # Asked a second time, or there is nobody to tell: at once.
                    self.draining = True
                    then(sig, frame)
                    return
                self.draining = True
                loop.call_soon_threadsafe(loop.call_later, self._drain_s, then, sig, frame)

            signal.signal(number, stop)
