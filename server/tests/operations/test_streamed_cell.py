"""A cell whose WAL is streamed is lost while clients write, and restored on a new machine by docs/backups.md.

The archive has what was written up to a minute ago. What is younger comes from the received files.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from server.tests.operations.backups_guide import listed, section
from server.tests.operations.debian_machine import MAIN
from server.tests.operations.ledger import HALVES, Ledger, writing
from server.tests.operations.lost_site import Site, running_site
from server.tests.operations.test_archive_reach import close_wal
from server.tests.operations.test_lost_machines import restore_cell
from server.tests.operations.wal_receiver import Receiver
from server.tests.processes import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

# What the roadmap promises for a cell whose WAL is streamed.
_MAX_LAG_S = 5.0
# For so long, nothing is archived before the loss.
_UNARCHIVED_S = 8.0


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as made:
        made.receiver = Receiver(made.root / "receiver", made.root / "received")
        made.follow(made.cell, listed(section("Stream the WAL of a cell")))
        wait_until_received(made)
        yield made


def wait_until_received(site: Site) -> None:
    """Until the receiver has all that is written now."""
    assert site.receiver is not None
    received = (
        "select from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid"
        " where slot_name = 'plainsql_stream' and flush_lsn >= %s"
    )
    with site.as_admin() as admin:
        (position,) = admin.execute("select pg_current_wal_flush_lsn()").fetchone() or ("",)
        wait_for(lambda: admin.execute(received, (position,)).rowcount == 1, 60, site.receiver.logged.read_text)


def lag_s(lost_s: float, ledger: Ledger, rows: dict[tuple[str, str], list[str]]) -> float:
    """How long before the loss the first write that is missing was acknowledged; 0 if none is."""
    found = {kind: set(rows[one]) for kind, (one, _) in HALVES.items()}
    gone = [
        at_s for kind, all_ in ledger.acknowledged.items() for number, at_s in all_.items() if number not in found[kind]
    ]
    return lost_s - min(gone) if gone else 0.0


async def test_what_was_acknowledged_five_seconds_before_the_loss_is_restored(site: Site) -> None:
    with site.as_admin() as admin:
        admin.execute("alter system set archive_timeout = '10min'")
        admin.execute("select pg_reload_conf()")
    async with writing(site.endpoints) as ledger:
        await ledger.more()
        with site.as_admin() as admin:
            close_wal(admin)
        closed_s = time.time()
        while time.time() < closed_s + _UNARCHIVED_S:
            await ledger.more(1)
        lost_s, lost = time.time(), site.cell
        await asyncio.to_thread(lost.kill, MAIN)
        known = ledger.copied()
        lost.lose(MAIN)
        await restore_cell(site)
        await ledger.more()
    await asyncio.to_thread(site.wait_until_settled)
    rows = site.rows()
    ledger.check_whole(rows)
    lag = lag_s(lost_s, known, rows)
    acknowledged = sum(map(len, known.acknowledged.values()))
    since = sum(at_s > closed_s for all_ in known.acknowledged.values() for at_s in all_.values())
    gone = known.lost(rows, 0)
    print(f"\n| {acknowledged} acknowledged | {since} since the last file was archived | {gone} lost | {lag:.3f} s |")
    assert since > 0
    assert lag <= _MAX_LAG_S
    # The new machine is streamed, too.
    await asyncio.to_thread(wait_until_received, site)
