"""Runs the planner of a cell when something has changed, and while requests wait.

    planning = Planning(planner, admission, close_one)
    planning.give_first(queue)    # a request finds that its database has no connection
    planning.look_again()         # a connection was opened or lost, or the limit was changed

`planner.py` decides, `admission_queue.py` knows who waits, `pools.py` opens and closes connections.
"""

import time
from collections.abc import Callable

from plainsql_server.engine.pool.admission_queue import AdmissionQueue, CallLater, TenantQueue, Timer, call_later
from plainsql_server.engine.pool.planner import Demand, Planner, Step, is_owed

# How often the planner looks at the requests that wait for a connection.
_LOOK_EVERY_S = 0.005


class Planning:
    """The planner of one cell, at work. `close_one` closes the longest idle connection of a database."""

    def __init__(
        self,
        planner: Planner,
        admission: AdmissionQueue,
        close_one: Callable[[Demand], None],
        clock: Callable[[], float] = time.monotonic,
        call_later: CallLater = call_later,
    ) -> None:
        self._planner = planner
        self._admission = admission
        self._close_one = close_one
        self._clock = clock
        self._call_later = call_later
        self._timer: Timer | None = None
        self._looked_s = 0.0
        admission.on_wait = self._on_wait

    def give_first(self, queue: TenantQueue) -> None:
        """Gives a database without connections its first slot, if no other database waits for its first."""
        if not self._admission.is_short() and self._admission.may_start(queue):
            self._take_step([(queue, 1)])

    def look_again(self) -> None:
        """Plans again, because a connection was opened or lost, or the limit was changed."""
        while self._planner.may_step(self._clock()):
            step = self._take_step(self._admission.wanting())
            if step is None:
                break
            if step.taker is not None:
                self._admission.start_one(step.taker)
        self._admission.before_serving = self.look_again if self._is_wanted() else None

    def _is_wanted(self) -> bool:
        """Whether the next slot that is released may be the one to take."""
        now_s = self._clock()
        return self._admission.is_short() or any(is_owed(queue, now_s) for queue, _ in self._admission.lacking())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_wait(self, queue: TenantQueue) -> None:
        if queue.slots == 0:
            # It has no connection, so the next slot that is released may be the one to take.
            self._admission.before_serving = self.look_again
        self._watch()

    def _watch(self) -> None:
        if self._timer is None:
            self._looked_s = self._clock()
            self._timer = self._call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._admission.waiting:
            now_s = self._clock()
            self._planner.accrue(now_s, now_s - self._looked_s, self._admission.lacking())
            self.look_again()
            self._watch()
        else:
            self._admission.before_serving = None

    def _take_step(self, waiting: list[tuple[TenantQueue, int]]) -> Step[TenantQueue] | None:
        step = self._planner.next_step(self._clock(), waiting)
        if step is not None and step.victim is not None:
            self._close_one(step.victim)
        return step
