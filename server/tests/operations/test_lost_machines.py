"""A cell, the directory or both are lost while clients write, and restored on a new machine by docs/backups.md.

The guide is followed as it is written, on clusters in Debian's layout. What was acknowledged before the moment that the
guide shows must be there, whole; the time between that and the loss is the archive's lag. `make soak PART=drills` does
it with the settings that `cell files` writes, and loses each several times, at any point of the minute in which a file
of the WAL is filled. It prints the lag.
"""

import asyncio
import random
import re
import time
from collections.abc import Iterator

import pytest

from server.tests.load import STALL_S, Client, size
from server.tests.operations.backups_guide import listed, section, steps
from server.tests.operations.debian_machine import DIRECTORY, MAIN, DebianMachine
from server.tests.operations.ledgers import Ledger, writing
from server.tests.operations.lost_site import CLOSED_AFTER_S, Site, running_site
from server.tests.operations.test_archive_reach import close_wal
from server.tests.processes import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

_ROUNDS = size("PLAINSQL_TEST_LOSSES", 1)
# PostgreSQL looks once a second whether a file is to be closed, and archiving it takes a second or two.
_MAX_LAG_S = CLOSED_AFTER_S + 10 + STALL_S
_KEY = "key_01a1dd46c3d981d456edc988e1ff9ebf"
_TIME = "2027-01-31 12:30:00.123456+00"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as made:
        yield made


async def restore_cell(site: Site) -> None:
    """By the guide, all of its steps. The last one is for a cell whose WAL is streamed."""
    machine, all_steps = site.new_machine(), steps("Restore a lost cell")
    for commands in all_steps if site.receiver is not None else all_steps[:-1]:
        await asyncio.to_thread(site.follow, machine, commands)
    site.cell = machine


async def restore_directory(site: Site, first: int, last: int) -> None:
    """By the guide, these steps."""
    machine = site.new_machine() if first == 1 else site.directory
    for commands in steps("Restore a lost directory")[first - 1 : last]:
        await asyncio.to_thread(site.follow, machine, commands)


async def until_full_minute(site: Site, machine: DebianMachine, *clusters: str) -> None:
    """Until each cluster has archived something, and then for a while."""
    for cluster in clusters:
        await asyncio.to_thread(site.wait_until_archived, machine, cluster)
    await asyncio.sleep(random.uniform(0, CLOSED_AFTER_S))


async def status_of(site: Site, key: str) -> int:
    async with Client(site.endpoints.data_port, key, trust=site.endpoints.trust) as client:
        return (await client.query("select 1")).status


def show(what: str, lag_s: float, lost: int, known: Ledger, after: Ledger) -> None:
    """Prints a row of a table."""
    acknowledged = sum(map(len, known.acknowledged.values()))
    failed = ", ".join(f"{count} × {name}" for name, count in sorted(after.failures.items()))
    print(f"\n| {what} | {acknowledged} | {lost} | {lag_s:.1f} s | {failed} |")
    assert lag_s <= _MAX_LAG_S


async def test_a_lost_cell_is_restored_on_a_new_machine(site: Site) -> None:
    for _ in range(_ROUNDS):
        async with writing(site.endpoints) as ledger:
            await ledger.more()
            await until_full_minute(site, site.cell, MAIN)
            late_id = site.operate(f"database create --org {site.organization_id} late")
            lost_s, lost = time.time(), site.cell
            await asyncio.to_thread(lost.kill, MAIN)
            known = ledger.copied()
            lost.lose(MAIN)
            await restore_cell(site)
            # The same key, on the new machine.
            await ledger.more()
        await asyncio.to_thread(site.wait_until_settled)
        rows = site.rows()
        ledger.check_whole(rows)
        gone = known.lost(rows, site.restored_until_s[MAIN])
        assert ledger.lost(rows, site.restored_until_s[MAIN]) == gone
        drop_late(site, late_id)
        show("the cell", lost_s - site.restored_until_s[MAIN], gone, known, ledger)


def drop_late(site: Site, id_: str) -> None:
    """What the guide says about a database that the restored cell may lack."""
    ((name,),) = site.ask_directory(f"select engine_name from databases where id = '{id_}'")
    with site.as_admin() as admin:
        is_there = admin.execute("select from pg_database where datname = %s", (name,)).rowcount > 0
    assert (f"The database {name} is missing." in site.operate("doctor", (0, 1))) is not is_there
    site.operate(f"database delete {id_} --permanently --yes")
    state = f"select state from databases where id = '{id_}'"
    wait_for(lambda: site.ask_directory(state) == [("deleted",)], 60, lambda: site.ask_directory(state))
    assert "is missing" not in site.operate("doctor", (0, 1))


async def test_a_lost_directory_is_restored_on_a_new_machine(site: Site) -> None:
    org = site.organization_id
    for _ in range(_ROUNDS):
        revoked = new_key(site)
        site.operate(f"key revoke {revoked[0]}")
        async with writing(site.endpoints) as ledger:
            await ledger.more(names=5)
            await until_full_minute(site, site.directory, DIRECTORY)
            late_key, late_s = new_key(site), time.time()
            late_id = site.operate(f"database create --org {org} late")
            lost_s, lost = time.time(), site.directory
            await asyncio.to_thread(lost.kill, DIRECTORY)
            known = ledger.copied()
            lost.lose(DIRECTORY)
            await restore_directory(site, 1, 4)
            await revoke_again(site, late_key[0], revoked[0])
            await restore_directory(site, 6, 6)
            await ledger.more(names=5)
        await asyncio.to_thread(site.wait_until_settled)
        until_s = site.restored_until_s[DIRECTORY]
        check_names(site, known, until_s)
        assert [await status_of(site, each) for each in (site.key, revoked[1], late_key[1])] == [200, 401, 401]
        rows = site.rows()
        ledger.check_whole(rows)
        # The cell was not lost.
        assert ledger.lost(rows, time.time()) == 0
        compare(site, late_id, was_archived=late_s < until_s)
        gone = sum(at_s > until_s for at_s in known.names.values())
        show("the directory", lost_s - until_s, gone, known, ledger)


async def revoke_again(site: Site, late: str, other: str) -> None:
    """By the guide: the newest key, if it is in the archive."""
    known = site.ask_directory(f"select from api_keys where id = '{late}'")
    (command,) = steps("Restore a lost directory")[4]
    await asyncio.to_thread(site.follow, site.directory, [command.replace(_KEY, late if known else other)])


def new_key(site: Site) -> tuple[str, str]:
    """The id and the secret of a new key."""
    command = f"key create --org {site.organization_id} --name another --scope write"
    ended = site.directory.run(f"plainsql-server {command}", site.settings)
    (id_,) = set(re.findall(r"key_[0-9a-f]{32}", ended.stderr))
    return id_, ended.stdout.strip()


def check_names(site: Site, known: Ledger, until_s: float) -> None:
    """Every name that was acknowledged before the moment is in the audit log."""
    noted = "select details->>'name' from audit where action = 'organization.rename'"
    found = {name for (name,) in site.ask_directory(noted)}
    early = {name for name, at_s in known.names.items() if at_s < until_s}
    assert early
    assert early <= found


def compare(site: Site, late_id: str, *, was_archived: bool) -> None:
    """What the guide says about a database that was created in the last minute."""
    printed = site.operate("doctor", (0, 1))
    is_known = bool(site.ask_directory(f"select from databases where id = '{late_id}'"))
    if was_archived and is_known:
        assert "no record of" not in printed
    else:
        (name,) = re.findall(r"no record of (d_[0-9a-f]{24})\.", printed)
        late_id = site.operate(f"database adopt --org {site.organization_id} --cell eu-1 --name late {name}")
    site.operate(f"database delete {late_id} --permanently --yes")


@pytest.mark.full  # the next test loses both, too; what each lacks then, the tests of each show
async def test_both_are_lost_and_restored_on_new_machines(site: Site) -> None:
    for _ in range(_ROUNDS):
        async with writing(site.endpoints) as ledger:
            await ledger.more(names=5)
            await until_full_minute(site, site.cell, MAIN)
            await until_full_minute(site, site.directory, DIRECTORY)
            lost_s = time.time()
            known = ledger.copied()
            await lose_everything(site)
            await restore_directory(site, 1, 3)
            await restore_cell(site)
            await restore_directory(site, 4, 4)
            await restore_directory(site, 6, 6)
            await ledger.more(names=5)
        await asyncio.to_thread(site.wait_until_settled)
        check_names(site, known, site.restored_until_s[DIRECTORY])
        rows = site.rows()
        ledger.check_whole(rows)
        gone = known.lost(rows, site.restored_until_s[MAIN])
        show("both: the cell", lost_s - site.restored_until_s[MAIN], gone, known, ledger)
        names = sum(at_s > site.restored_until_s[DIRECTORY] for at_s in known.names.values())
        show("both: the directory", lost_s - site.restored_until_s[DIRECTORY], names, known, ledger)


async def lose_everything(site: Site) -> None:
    """The planes are killed, too."""
    await asyncio.gather(
        asyncio.to_thread(site.cell.kill, MAIN),
        asyncio.to_thread(site.directory.kill, DIRECTORY),
        asyncio.to_thread(site.kill_planes),
    )
    site.cell.lose(MAIN)
    site.directory.lose(DIRECTORY)


async def test_a_transaction_whose_decision_was_lost_is_not_there_in_part(site: Site) -> None:
    """The data plane was lost between its two commits, and the directory with it; the archive of the cell has one."""
    async with writing(site.endpoints) as ledger:
        await ledger.more()
        # It would end what is prepared and not known to it.
        await asyncio.to_thread(site.nodes["control"].stop)
    await asyncio.to_thread(commit_one_half, site)
    await lose_everything(site)
    await restore_directory(site, 1, 3)
    await restore_cell(site)
    printed = site.operate("directory reconcile", (1,))
    assert re.search(r"_1 +eu-1 +d_[0-9a-f]{24} +1 of 2 +uncertain", printed)
    commands = listed(section("A transaction that is uncertain"))
    since = site.cell.run(commands[0], site.settings).stdout.strip()
    assert since
    await asyncio.to_thread(site.follow, site.cell, [line.replace(_TIME, since) for line in commands[1:]])
    await restore_directory(site, 6, 6)
    await asyncio.to_thread(site.wait_until_settled)
    rows = site.rows()
    ledger.check_whole(rows)
    ledger.lost(rows, site.restored_until_s[MAIN])
    assert await status_of(site, site.key) == 200


def commit_one_half(site: Site) -> None:
    """A transaction over both databases whose first part is committed, and of which the directory knows nothing.

    The archive has it.
    """
    whole = f"plainsql_{'ab' * 20}_2"
    for number, database in enumerate(("main", "other")):
        with site.as_admin(site.engine_name(database)) as admin:
            admin.execute("begin")
            admin.execute("insert into c values ('half')")
            admin.execute(f"prepare transaction '{whole}_{number}'".encode())
    with site.as_admin(site.engine_name("main")) as admin:
        admin.execute(f"commit prepared '{whole}_0'".encode())
        close_wal(admin)
