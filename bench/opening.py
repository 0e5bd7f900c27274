"""What it costs to open a connection to a cell: over its socket, and over TLS with a client certificate.

Owns cells of its own, one for each type of key, on each PostgreSQL that is installed. Counts the processor time of both
ends, and how long our event loop could do nothing else. The configurations take turns, so that each has its share of
whatever else the machine does; what counts most is the ratio to the socket in the same round.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from trustme import KeyType

from bench.bars import BLOCKED_MS, OPENING_BARS, OPENING_MS, missed
from bench.cells import ADMIN_ROLE, BenchCell, can_tls, running_cell
from bench.processes import children, cpu_s
from plainsql_server.dev.binaries import Binaries, binaries_in, installed_binaries
from plainsql_server.engine.connection.connection import Connection
from plainsql_server.engine.pool.address import Address

_TIMEOUT_S = 10
_KEYS = {KeyType.RSA: "RSA-2048", KeyType.ECDSA: "ECDSA P-256"}
# The first release that takes a TLS handshake without being asked whether it knows TLS.
_DIRECT_MAJOR = 17


@dataclass(frozen=True)
class Round:
    """What one opening took, on the average of a round."""

    service_ms: float
    engine_ms: float

    @property
    def both_ms(self) -> float:
        return self.service_ms + self.engine_ms


@dataclass
class Configuration:
    """One way to reach a cell, and what was measured there."""

    name: str
    pid: int
    conninfo: bytes
    # The same PostgreSQL's socket; None if it is that.
    socket: "Configuration | None" = None
    rounds: list[Round] = field(default_factory=list)
    # The longest time for which each opening kept the event loop busy.
    blocked_ms: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        both_ms = median(each.both_ms for each in self.rounds)
        return {OPENING_MS: both_ms, BLOCKED_MS: median(self.blocked_ms)}

    def of_socket(self) -> float:
        base = self.rounds if self.socket is None else self.socket.rounds
        return median(own.both_ms / its.both_ms for own, its in zip(self.rounds, base, strict=True))


class WatchedSelector(selectors.EpollSelector):
    """Notes the longest time between two looks at the sockets: so long the loop could not react to anything."""

    def __init__(self) -> None:
        super().__init__()
        self._left_s = time.perf_counter()
        self.longest_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.longest_s = max(self.longest_s, time.perf_counter() - self._left_s)
        try:
            return super().select(timeout)
        finally:
            self._left_s = time.perf_counter()


def show(rounds: int, openings: int, folder: Path | None) -> list[str]:
    """Measures and prints. Returns what misses its bar: ECDSA over TLS is what production is held to."""
    found = measure(rounds, openings, folder)
    print(f"{'':42}  both ms  of socket  service ms  engine ms  loop blocked ms (p99)")
    below: list[str] = []
    for each in found:
        service_ms, engine_ms = (
            median(getattr(one, end) for one in each.rounds) for end in ("service_ms", "engine_ms")
        )
        figures, worst_ms = each.figures(), sorted(each.blocked_ms)[len(each.blocked_ms) * 99 // 100]
        misses = missed(figures, OPENING_BARS) if "ECDSA" in each.name else []
        print(
            f"{each.name:42}  {figures[OPENING_MS]:7.2f}  {each.of_socket():9.2f}  {service_ms:10.2f}  {engine_ms:9.2f}"
            f"  {figures[BLOCKED_MS]:8.2f} ({worst_ms:.2f})  {'; '.join(misses)}".rstrip()
        )
        below += misses
    return below


def measure(rounds: int, openings: int, folder: Path | None) -> list[Configuration]:
    """Opens so many connections a round in each configuration."""
    with ExitStack() as running:
        found = list(_configurations(_installations(folder), running))
        for each in found:
            # The first ones fill caches that are then there for good.
            _open(each, openings=5)
        for _ in range(rounds):
            for each in found:
                measured, blocked_ms = _open(each, openings)
                each.rounds.append(measured)
                each.blocked_ms += blocked_ms
    return found


def _installations(folder: Path | None) -> list[Binaries]:
    return [*installed_binaries(), *([] if folder is None else [binaries_in(folder)])]


def _configurations(installations: Sequence[Binaries], running: ExitStack) -> Iterator[Configuration]:
    for binaries in installations:
        if not can_tls(binaries):
            print(f"PostgreSQL {binaries.version} in {binaries.directory} was built without TLS")
            continue
        for key_type, key in _KEYS.items():
            cell = running.enter_context(running_cell(binaries, key_type))
            yield from _of_cell(cell, binaries.major, key)


def _of_cell(cell: BenchCell, major: int, key: str) -> Iterator[Configuration]:
    def configuration(name: str, conninfo: str, socket: Configuration | None = None) -> Configuration:
        address = Address(conninfo, "postgres", ADMIN_ROLE)
        return Configuration(f"{major}: {name}", cell.pid, address.conninfo(_TIMEOUT_S * 1000), socket)

    socket = configuration(f"socket (beside {key})", cell.socket_conninfo)
    yield socket
    yield configuration(f"TLS, {key}", cell.tls_conninfo, socket)
    if major >= _DIRECT_MAJOR:
        yield configuration(f"TLS, {key}, direct", f"{cell.tls_conninfo} sslnegotiation=direct", socket)


def _open(each: Configuration, openings: int) -> tuple[Round, list[float]]:
    selector = WatchedSelector()
    factory: Callable[[], asyncio.AbstractEventLoop] = lambda: asyncio.SelectorEventLoop(selector)  # noqa: E731
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_measured(each, openings, selector))


async def _measured(each: Configuration, openings: int, selector: WatchedSelector) -> tuple[Round, list[float]]:
    others, before_s, began_s = len(children(each.pid)), cpu_s(each.pid), time.process_time()
    blocked_ms: list[float] = []
    for _ in range(openings):
        await asyncio.sleep(0)
        selector.longest_s = 0.0
        connection = await Connection.open(each.conninfo, _TIMEOUT_S)
        await asyncio.sleep(0)
        blocked_ms.append(selector.longest_s * 1e3)
        connection.close()
    service_ms = (time.process_time() - began_s) / openings * 1e3
    # The time of a backend counts once it has ended.
    _wait_for_end(each.pid, others)
    return Round(service_ms, (cpu_s(each.pid) - before_s) / openings * 1e3), blocked_ms


def _wait_for_end(pid: int, others: int) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while len(children(pid)) > others:
        if time.monotonic() > end_s:
            raise SystemExit("backends did not end")
        time.sleep(0.01)
