"""Whether a process accepts new work: the first phase of a graceful shutdown.

Once a stop is requested, health checks fail and every answer closes its connection, so load balancers and clients move
to other processes. Requests that still arrive are answered. Only after this drain time does the server stop listening.
"""

import asyncio
import signal
from types import FrameType


class Readiness:
    """The drain state, shared by the signal handlers and the request handlers."""

    def __init__(self, drain_ms: int) -> None:
        self.draining = False
        self.drain_began = asyncio.Event()
        self._drain_s = drain_ms / 1000

    def drain_on_signals(self) -> None:
        """Adds draining before the server's own signal handlers. Call it once those are installed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            servers_own = signal.getsignal(number)
            if not callable(servers_own):
                continue

            def stop(sig: int, frame: FrameType | None, then: object = servers_own) -> None:
                assert callable(then)
                loop.call_soon_threadsafe(self.drain_began.set)
                if self.draining or not self._drain_s:
                    # Stop at once on a second signal, or if there is no drain time.
                    self.draining = True
                    then(sig, frame)
                    return
                self.draining = True
                loop.call_soon_threadsafe(loop.call_later, self._drain_s, then, sig, frame)

            signal.signal(number, stop)
