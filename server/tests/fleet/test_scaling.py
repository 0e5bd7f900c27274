"""Two processes become four and two again while clients write: no request fails, and the cell's limit is kept.

The cell allows so few connections that the processes have to share them. Everything over HTTPS, behind a real alias
that follows the processes. `make soak PART=moves` does it more often (PLAINSQL_TEST_SCALINGS).
"""

import asyncio
import contextlib
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from plainsql_server.dev.ports import free_ports
from plainsql_server.engine.pool.share import OTHER_CONNECTIONS, share_of
from plainsql_server.operations.files.cell import CellConfig
from server.tests.fleet.https_alias import CUT, Site, running_site
from server.tests.load import Node, size
from server.tests.postgres import SUPERUSER, Postgres, running_postgres
from server.tests.sampling import sampling

pytestmark = [pytest.mark.timing, pytest.mark.full]

_SCALINGS = size("PLAINSQL_TEST_SCALINGS", 1)
_DATABASES = 24
_TENANT_CONNECTIONS = 32
_MAX_CONNECTIONS = _TENANT_CONNECTIONS + OTHER_CONNECTIONS
_OPEN = "plainsql_cell_open_connections{"
_COUNT = "select count(*) from pg_stat_activity where application_name = 'plainsql'"
_EVERY_S = 0.02
# The hash may give one process more databases than it may have connections.
_MOST_DATABASES = _DATABASES - 4
_NEVER_S = 60.0
_SAMPLES = 50


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    # The directory is elsewhere, so that its connections do not count.
    few = {"max_connections": str(_MAX_CONNECTIONS)}
    with (
        running_postgres(lambda root: CellConfig(SUPERUSER, str(root), others=few)) as cell,
        postgres.swept(),
        running_site(postgres.fresh_directory(), cell, tmp_path, _DATABASES) as site,
    ):
        yield site


@dataclass
class Seen:
    """How many connections the service had to the cell, as a superuser saw it."""

    most: int = 0
    samples: int = 0
    # While each process knew its share.
    is_shared: bool = False
    most_shared: int = 0
    samples_shared: int = 0

    def note(self, count: int) -> None:
        self.most = max(self.most, count)
        self.samples += 1
        if self.is_shared:
            self.most_shared = max(self.most_shared, count)
            self.samples_shared += 1


@contextmanager
def watching(cell: Postgres) -> Iterator[Seen]:
    """Counts all the time, for the length of the block."""
    seen = Seen()
    with cell.connect() as admin:

        def look() -> None:
            ((count,),) = admin.execute(_COUNT).fetchall()
            seen.note(count)

        with sampling(look, _EVERY_S):
            yield seen


def open_of(node: Node) -> list[int]:
    """How many connections each process of a node has to the cell, by its metrics."""
    first = int(node.settings["PLAINSQL_METRICS_PORT"])
    return [_open_by_metrics(port) for port in (first, first + 1)]


def _open_by_metrics(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(_OPEN))


async def until(condition: Callable[[], bool], otherwise: Callable[[], object]) -> float:
    """Waits in a thread, so that the clients go on. Returns how long it took, in seconds."""
    began_s = time.monotonic()
    end_s = began_s + _NEVER_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < end_s, otherwise()
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def test_scaling_out_and_in_again_fails_no_request_and_keeps_the_limit_of_the_cell(site: Site) -> None:
    took: list[str] = []
    with site.node(metrics_port=free_ports(2)[0]) as first, site.alias(), watching(site.cell) as seen:
        async with site.writing() as writers:
            for _ in range(_SCALINGS):
                await until(lambda: sum(open_of(first)) >= _MOST_DATABASES, lambda: open_of(first))
                metrics_port = free_ports(2)[0]
                starting = contextlib.ExitStack()
                second = await asyncio.to_thread(starting.enter_context, site.node(metrics_port=metrics_port))
                with starting:
                    took.append(await scaled(site, first, second, seen))
    words = sum((each.words for each in writers), Counter[str]())
    count = sum(len(each.acknowledged) for each in writers)
    print(
        f"\n2 to 4 processes and back: {'; '.join(took)}; {count} acknowledged, {dict(words)}; at most {seen.most}"
        f" connections, and {seen.most_shared} of {_TENANT_CONNECTIONS} while shared ({seen.samples} samples)"
    )
    site.check(writers)
    # When it reloads, nginx before 1.27.4 closes connections without a request, though one may be on its way. It has
    # not read that one. Whatever was read has succeeded.
    assert words.keys() <= {CUT}
    rows = site.rows()
    assert [each.database for each in writers if not each.has_keys and each.unknown & rows[each.database].keys()] == []
    # Until the others have renewed their entries, those that join have theirs in addition. While shared, it is printed
    # and not asserted: a superuser has seen 33 of 32 there, where the processes themselves counted fewer.
    assert seen.most <= _TENANT_CONNECTIONS + 2 * share_of(_MAX_CONNECTIONS, 4) < _MAX_CONNECTIONS


async def scaled(site: Site, first: Node, second: Node, seen: Seen) -> str:
    """The second node joins, takes its part of the connections, and leaves. How long each of it took."""
    few = share_of(_MAX_CONNECTIONS, 4)
    followed_s = await until(lambda: site.ports_of(second) <= site.followed(), site.followed)
    shared_s = await until(
        lambda: max(open_of(first)) <= few and min(open_of(second)) > 0, lambda: (open_of(first), open_of(second))
    )
    assert max(open_of(second)) <= few
    seen.is_shared, before = True, seen.samples_shared
    await until(lambda: seen.samples_shared > before + _SAMPLES, lambda: seen)
    seen.is_shared = False
    assert await asyncio.to_thread(second.stop) == 0
    back_s = await until(lambda: sum(open_of(first)) >= _MOST_DATABASES, lambda: open_of(first))
    return f"followed {followed_s:.1f} s, shared {followed_s + shared_s:.1f} s, taken back {back_s:.1f} s"
