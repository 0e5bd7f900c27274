"""Parts of the running service: how they are started, watched and stopped.

A part names the parts that it needs, and starts as soon as all of them are ready; parts with the same needs start
together. Parts stop in the reverse order. To add a part, write a subclass of `Part` and add it to the list in
`command.py`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from signal import Signals as Signal

from plainsql_server.dev.options import DevError
from plainsql_server.dev.processes import Child
from plainsql_server.dev.screen import Screen
from plainsql_server.dev.signals import Signals

# The pause between two checks of a part that is starting or stopping.
_GLANCE_S = 0.02


class Part(ABC):
    """One thing that `dev` runs."""

    name: str
    needs: frozenset[str] = frozenset()
    """The names of the parts that must be ready first."""
    start_limit_s: float = 30.0
    lasting: bool = True
    """Whether it keeps running once it is ready, so that its exit is a failure. False for a one-time step."""
    stop_plan: Sequence[tuple[float, Signal]] = ((0.0, Signal.SIGTERM), (2.5, Signal.SIGKILL))
    """Which signal to send after how many seconds of stopping."""
    child: Child | None = None

    def prepare(self) -> None:  # noqa: B027 - most parts have nothing to prepare
        """Does what takes time and needs no other part. Called while other parts start, possibly several times."""

    @abstractmethod
    def start(self) -> None:
        """Starts the part and returns at once."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers, or the step is done. Called repeatedly; raises DevError if it can never be ready."""

    def detail(self) -> str:
        """The text to show next to its name once it is ready."""
        return ""

    def gone(self) -> bool:
        """Whether no process of it is running."""
        return self.child is None or self.child.exited()

    def send(self, number: Signal) -> None:
        """Sends a signal of the stop plan."""
        if self.child is not None:
            self.child.send(number)

    def failure(self, what: str) -> DevError:
        """An error that says what happened to this part, with the end of its log."""
        if self.child is None:
            return DevError(f"{self.name} {what}")
        tail = self.child.log_tail() or "(empty)"
        return DevError(f"{self.name} {what}. The end of {self.child.log_file}:\n\n{tail}")


def start_all(parts: Sequence[Part], signals: Signals, screen: Screen) -> bool:
    """Starts every part and waits until all are ready. Returns False if a stop signal arrives first.

    Raises DevError if a part fails or takes too long. Parts that were started by then keep running.
    """
    waiting, starting, ready = list(parts), dict[Part, float](), list[Part]()
    while waiting or starting:
        if signals.stop_asked:
            return False
        names = {part.name for part in ready}
        for part in [part for part in waiting if part.needs <= names]:
            waiting.remove(part)
            starting[part] = time.monotonic()
            part.start()
        done = [part for part in starting if _is_ready(part, starting[part])]
        for part in done:
            screen.part_ready(part.name, time.monotonic() - starting.pop(part), part.detail())
        ready += done
        refuse_the_dead(ready)
        if not done:
            for part in waiting:
                part.prepare()
            signals.wait(_GLANCE_S)
    return True


def refuse_the_dead(parts: Sequence[Part]) -> None:
    """Raises DevError if a part that should be running has exited."""
    for part in parts:
        if part.lasting and part.child is not None and part.child.exited():
            raise part.failure(f"exited unexpectedly (exit code {part.child.process.returncode})")


def stop_all(parts: Sequence[Part], signals: Signals) -> None:
    """Stops every part, starting with those that no running part needs. Returns when all have stopped."""
    running = [part for part in parts if not part.gone()]
    asked: dict[Part, tuple[float, int]] = {}
    while running:
        needed = frozenset[str]().union(*(part.needs for part in running))
        for part in [part for part in running if part.name not in needed]:
            began, sent = asked.get(part, (time.monotonic(), 0))
            asked[part] = (began, _follow_plan(part, began, sent))
        signals.wait(_GLANCE_S)
        running = [part for part in running if not part.gone()]


def _is_ready(part: Part, began: float) -> bool:
    if part.lasting and part.child is not None and part.child.exited():
        raise part.failure(f"exited during startup (exit code {part.child.process.returncode})")
    if part.ready():
        return True
    if time.monotonic() - began > part.start_limit_s:
        raise part.failure(f"isn't ready after {part.start_limit_s:.0f} s")
    return False


def _follow_plan(part: Part, began: float, sent: int) -> int:
    elapsed_s = time.monotonic() - began
    for after_s, number in part.stop_plan[sent:]:
        if elapsed_s >= after_s:
            part.send(number)
            sent += 1
    return sent
