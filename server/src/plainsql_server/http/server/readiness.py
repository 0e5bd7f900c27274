"""Whether a process accepts new work: the first phase of a graceful shutdown.

Once a stop is requested, health checks fail and every answer closes its connection, so load balancers and clients move
to other processes. Requests that still arrive are answered. Only after this drain time does the server stop listening.

A process that is replaced drains in the same way, but its health checks still succeed, because its successor listens on
the same port.
"""

import asyncio
import signal
from types import FrameType

# How long a request may keep running after the server has stopped listening. Then it is cancelled with an error.
LAST_ANSWERS_AFTER_S = 2.0
# The same in a process that was replaced: nothing waits for its end.
_REPLACED_LAST_ANSWERS_AFTER_S = 60.0
# A process that was replaced drains this many times as long. Until then, most clients have sent a request, whose answer
# closes their connection. A client that sends one at the same time as its connection is closed would get no answer.
_REPLACED_DRAIN_FACTOR = 10


class Readiness:
    """The drain state, shared by the signal handlers and the request handlers."""

    def __init__(self, drain_ms: int) -> None:
        self.draining = False
        self.is_replaced = False
        self.drain_began = asyncio.Event()
        self._drain_s = drain_ms / 1000

    @property
    def replaced_drain_s(self) -> float:
        """How long a process that was replaced drains."""
        return self._drain_s * _REPLACED_DRAIN_FACTOR

    @property
    def last_answers_after_s(self) -> float:
        """How long requests may keep running after the server has stopped listening."""
        return _REPLACED_LAST_ANSWERS_AFTER_S if self.is_replaced else LAST_ANSWERS_AFTER_S

    def replace(self) -> None:
        """Drains: a successor is ready. Call it on the event loop."""
        self.draining = self.is_replaced = True
        self.drain_began.set()

    def drain_on_signals(self) -> None:
        """Adds draining before the server's own signal handlers. Call it once those are installed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            servers_own = signal.getsignal(number)
            if not callable(servers_own):
                continue

            def stop(sig: int, frame: FrameType | None, then: object = servers_own) -> None:
                assert callable(then)
                # It may have been replaced, but now its successor stops too.
                self.is_replaced = False
                loop.call_soon_threadsafe(self.drain_began.set)
                if self.draining or not self._drain_s:
                    # Stop at once on a second signal, or if there is no drain time.
                    self.draining = True
                    then(sig, frame)
                    return
                self.draining = True
                loop.call_soon_threadsafe(loop.call_later, self._drain_s, then, sig, frame)

            signal.signal(number, stop)
