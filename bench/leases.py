"""What one Redis holds: leases of permits, what each takes of its processor, and the memory of an organization.

Owns a Redis of its own, asked as nodes ask it, by the service's own ledger. What a lease takes depends on in how many
slots of the window its organization asked before, so there are two kinds: quiet organizations ask once in a window, and
busy ones in every slot of it. Redis' processor time counts, since the one client here is slower than Redis is.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from redis import Redis

from bench.processes import cpu_s
from plainsql_server.limits.ledger import Ask
from plainsql_server.limits.shared import SharedLedger
from plainsql_server.limits.window import Window

_START_LIMIT_S = 10
# Never reached, so that each lease is granted.
_LIMIT = 1_000_000_000
# A shorter window has as many slots, and each of them is used sooner.
_QUIET = Window(60_000)
_BUSY = Window(12_000)
_BUSY_ORGANIZATIONS = 300
_AT_ONCE = 100


@dataclass(frozen=True)
class Leases:
    """What many leases took, of which so many were asked for in one round trip."""

    name: str
    at_once: int
    per_second: float
    redis_us: float
    organization_bytes: float | None = None


def show(organizations: int, seconds: float) -> None:
    """Measures, and prints what was found."""
    print("organizations  at once  leases/s  us of Redis  bytes each")
    for found in asyncio.run(measure(organizations, seconds)):
        each_bytes = "" if found.organization_bytes is None else f"{found.organization_bytes:.0f}"
        print(f"{found.name:13}  {found.at_once:7}  {found.per_second:8.0f}  {found.redis_us:11.1f}  {each_bytes:>10}")


async def measure(organizations: int, seconds: float) -> list[Leases]:
    """Quiet organizations, each asked for once; then busy ones in each slot of a window, and then without a pause."""
    with _running_redis() as (url, pid), Redis.from_url(url) as redis:
        empty = _memory_bytes(redis)
        async with SharedLedger.open(url, _QUIET) as ledger:
            quiet = await _timed(ledger, pid, "quiet", _names("quiet", organizations), at_once=_AT_ONCE)
        quiet = replace(quiet, organization_bytes=(_memory_bytes(redis) - empty) / organizations)
        redis.flushdb()
        names = _names("busy", _BUSY_ORGANIZATIONS)
        async with SharedLedger.open(url, _BUSY) as ledger:
            await _use_every_slot(ledger, names)
            busy_bytes = (_memory_bytes(redis) - empty) / _BUSY_ORGANIZATIONS
            many = await _timed(ledger, pid, "busy", names, at_once=_AT_ONCE, seconds=seconds)
            single = await _timed(ledger, pid, "busy", names, at_once=1, seconds=seconds)
    return [quiet, replace(many, organization_bytes=busy_bytes), single]


async def _timed(
    ledger: SharedLedger, pid: int, name: str, names: Sequence[str], *, at_once: int, seconds: float = 0
) -> Leases:
    """Asks for each organization in turn, at least once and until the time is over."""
    began_s, began_cpu_s, asked = time.monotonic(), cpu_s(pid), 0
    while asked < len(names) or time.monotonic() < began_s + seconds:
        start = asked % len(names)
        asked += await _ask(ledger, names[start : start + at_once])
    took_s, took_cpu_s = time.monotonic() - began_s, cpu_s(pid) - began_cpu_s
    return Leases(name, at_once, asked / took_s, took_cpu_s / asked * 1e6)


async def _use_every_slot(ledger: SharedLedger, names: Sequence[str]) -> None:
    end_s = time.monotonic() + _BUSY.counted_slots * _BUSY.life_s
    while (began_s := time.monotonic()) < end_s:
        await _ask(ledger, names)
        await asyncio.sleep(max(0.0, began_s + _BUSY.life_s - time.monotonic()))


async def _ask(ledger: SharedLedger, names: Sequence[str]) -> int:
    asks = [Ask(name, _LIMIT, needed=1, wanted=10, given=0, returned=()) for name in names]
    settled = await ledger.settle(asks)
    assert all(each.granted == 11 for each in settled)
    return len(settled)


def _names(kind: str, organizations: int) -> list[str]:
    # As long as a real id is.
    return [f"org_{kind}{number:018}" for number in range(organizations)]


def _memory_bytes(redis: "Redis") -> int:
    return int(redis.info("memory")["used_memory"])


@contextmanager
def _running_redis() -> Iterator[tuple[str, int]]:
    """The address of a Redis that keeps nothing on disk, and its process."""
    folder = Path(tempfile.mkdtemp(prefix="plainsql-bench-"))
    socket = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + _START_LIMIT_S
        # It is ready as soon as its socket is there.
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit("redis-server did not start")
            time.sleep(0.01)
        yield f"unix://{socket}", process.pid
    finally:
        process.terminate()
        process.wait(_START_LIMIT_S)
        shutil.rmtree(folder)
