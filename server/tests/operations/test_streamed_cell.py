"""A cell whose WAL is streamed by docs/backups.md: what the receiver may do, what is seen of it, and a lost cell.

The cell is lost while clients write and its archive takes nothing. What it wrote last is then only with the receiver.
"""

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from plainsql_server.cli.progress import Bar
from plainsql_server.control_plane.upkeep import Upkeep
from plainsql_server.core.errors import RequestError
from plainsql_server.directory.connection import Directory
from plainsql_server.metrics import Metrics
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.reach import archived_among
from plainsql_server.operations.point_in_time.received import received_files
from plainsql_server.operations.point_in_time.spare_cluster import spare_cluster_at
from server.tests.drills.rotation_site import libpq_settings
from server.tests.load import STALL_S
from server.tests.operations.backups_guide import listed, section
from server.tests.operations.debian_machine import MAIN, give_to_postgres
from server.tests.operations.ledgers import HALVES, Ledger, writing
from server.tests.operations.lost_site import Site, running_site
from server.tests.operations.test_archive_reach import close_wal
from server.tests.operations.test_lost_machines import restore_cell
from server.tests.operations.wal_receiver import Receiver
from server.tests.postgres import SUPERUSER
from server.tests.processes import wait_for
from server.tests.run_folder import run_folder

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

# What is promised for a cell whose WAL is streamed.
_MAX_LAG_S = 5.0
# For so long, nothing is archived before the loss. Longer than what may be missing: without a receiver, all of it is.
_UNARCHIVED_S = _MAX_LAG_S + STALL_S + 3.0
_LIMIT_S = 90
# For how long what the receiver has on its disk was on the way.
_BEHIND = "select extract(epoch from flush_lag)::float8 from pg_stat_replication where flush_lag is not null"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as made:
        made.receiver = Receiver(made.root / "receiver", made.root / "received")
        made.follow(made.cell, listed(section("Stream the WAL of a cell")))
        # The first one is of a cell that was not yet added.
        made.follow(made.cell, ["systemctl start plainsql-archive@full.service"])
        wait_until_received(made)
        yield made


def receiver_of(site: Site) -> Receiver:
    assert site.receiver is not None
    return site.receiver


def wait_until_received(site: Site) -> None:
    """Until the receiver has all that is written now."""
    received = (
        "select from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid"
        " where slot_name = 'plainsql_stream' and flush_lsn >= %s"
    )
    with site.as_admin() as admin:
        (position,) = admin.execute("select pg_current_wal_flush_lsn()").fetchone() or ("",)
        logged = receiver_of(site).logged
        wait_for(lambda: admin.execute(received, (position,)).rowcount == 1, _LIMIT_S, logged.read_text)


def finding(site: Site) -> str:
    """What doctor says of the stream: its grade, the finding and the fix."""
    found = re.findall(
        r"^(..)  cell eu-1 +(.*\b[Rr]ecei.*)$(?:\n +→ (.*))?", site.operate("doctor", (0, 1)), re.MULTILINE
    )
    assert len(found) == 1, found
    return " ".join(found[0])


def metrics(site: Site) -> dict[str, float]:
    """What the control plane measures of the stream."""

    async def measured() -> dict[str, float]:
        shown = Metrics()
        async with Directory.open(site.dsn) as directory:
            upkeep = Upkeep(directory, lambda _: None, {})
            shown.watch_upkeep(upkeep.load)
            await upkeep.look()
        samples = [sample for family in shown.collect() for sample in family.samples]
        start = "plainsql_cell_stream_"
        return {each.name.removeprefix(start): each.value for each in samples if each.name.startswith(start)}

    with pytest.MonkeyPatch.context() as patch:
        for name, value in libpq_settings(site.pki.root, "control").items():
            patch.setenv(name, value)
        return asyncio.run(measured())


def write_wal(admin: psycopg.Connection) -> None:
    """More than 8 MB in its current file, which is then closed."""
    admin.execute("select pg_logical_emit_message(true, 'test', repeat('x', 9000000))")
    admin.execute("select pg_switch_wal()")


def test_the_receivers_login_opens_the_stream_and_no_database(site: Site) -> None:
    own = receiver_of(site).config / "stream"
    # All that its machine has: no certificate, which would open the customers' databases.
    assert {each.name for each in own.iterdir()} == {"servers.crt", "servers.crl", "passfile"}
    assert (own / "passfile").stat().st_mode & 0o777 == 0o600
    where = f"host=localhost port={site.cell.ports[MAIN]} sslmode=verify-full sslrootcert={own}/servers.crt"
    password = (own / "passfile").read_text().splitlines()[1].rpartition(":")[2]

    def connect(user: str, more: str) -> None:
        psycopg.connect(f"{where} user={user} {more}").close()

    connect("plainsql_stream", f"password={password} dbname=postgres replication=true")
    owners = [str(owner) for (owner,) in site.ask_directory("select engine_name from roles")]
    for user in ("plainsql_stream", "plainsql_probe", SUPERUSER, *owners):
        for database in ("postgres", site.engine_name("main")):
            with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf|certificate"):
                connect(user, f"password={password} dbname={database}")
    certificate = f"sslcert={site.pki.root}/data/client.crt sslkey={site.pki.root}/data/client.key"
    for secret in ("password=another", certificate):
        with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|no password supplied"):
            connect("plainsql_stream", f"{secret} dbname=postgres replication=true")


def test_a_receiver_that_is_stopped_or_hangs_is_reported_until_it_receives_again(site: Site) -> None:
    assert finding(site).startswith("ok Its WAL is received.")
    found = metrics(site)
    assert (found["received"], found["lost"]) == (1, 0)
    receiver_of(site).stop()
    with site.as_admin() as admin:
        write_wal(admin)
    found = metrics(site)
    assert (found["received"], found["lost"]) == (0, 0)
    assert found["lag_bytes"] > 8_000_000
    assert found["lag_seconds"] > 0
    assert finding(site).startswith("!! Its WAL is not being received.")
    assert "Restart plainsql-stream.service" in finding(site)
    receiver_of(site).start()
    wait_until_received(site)
    assert finding(site).startswith("ok Its WAL is received.")
    process = receiver_of(site).process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: metrics(site)["received"] == 0, _LIMIT_S, lambda: "the cell does not see it")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until_received(site)
    assert metrics(site)["received"] == 1


def test_received_files_are_deleted_when_the_archive_has_them_except_the_newest(site: Site) -> None:
    receiver, archive = receiver_of(site), site.cell.config(MAIN) / "pgbackrest"
    prune = f"wal prune {receiver.received} --archive {archive}"
    with site.as_admin() as admin:
        for _ in range(2):
            write_wal(admin)
        close_wal(admin)
    wait_until_received(site)

    def complete() -> list[str]:
        return [file.name for file in received_files(receiver.received) if file.is_complete]

    site.operate(prune)
    *before, _ = complete()
    # Others may have been closed meanwhile.
    assert not asyncio.run(archived_among(Archive(archive), before))
    with refusing_archive(site), site.as_admin() as admin:
        for _ in range(3):
            write_wal(admin)
        wait_until_received(site)
        site.operate(prune)
        # The newest of before may be in the archive, and the others are not.
        assert len(complete()) >= 3
    # Nothing is deleted if the archive is not there.
    kept, conf = complete(), archive / "pgbackrest.conf"
    text = conf.read_text()
    conf.write_text(text.replace("repo1-path=", "repo1-path=/nowhere"))
    try:
        assert site.operate(prune, (0, 1)) == ""
    finally:
        conf.write_text(text)
    assert set(kept) <= set(complete())


@contextmanager
def refusing_archive(site: Site) -> Iterator[None]:
    """The archive takes no WAL within the block, and can be read."""
    folders = [each for each in (site.root / "archive/archive").rglob("*") if each.is_dir()]
    modes = [(each, each.stat().st_mode & 0o777) for each in folders]
    for folder, _ in modes:
        folder.chmod(0o500)
    try:
        yield
    finally:
        for folder, mode in modes:
            folder.chmod(mode)


@pytest.fixture
def work_folder() -> Iterator[Path]:
    """For spare clusters. The path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="s", dir=run_folder()) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def test_one_database_is_restored_as_it_was_last(site: Site, work_folder: Path) -> None:
    with site.as_admin(site.engine_name("main")) as admin:
        admin.execute("insert into a values ('latest')")
        try:
            wait_until_received(site)
            archive = f"--archive {site.cell.config(MAIN)}/pgbackrest --received {receiver_of(site).received}"
            options = f"--org {site.organization_id} --from main --at latest --work-folder {work_folder}"
            id_ = site.operate(f"restore as-last {options} {archive}")
        finally:
            admin.execute("delete from a where n = 'latest'")
    with site.as_admin(site.engine_name("as-last")) as admin:
        assert admin.execute("select from a where n = 'latest'").rowcount == 1
    site.operate(f"database delete {id_} --permanently --yes")


async def test_a_spare_cluster_has_what_only_the_receiver_has_and_a_gap_in_that_is_noticed(
    site: Site, work_folder: Path
) -> None:
    receiver, name = receiver_of(site), site.engine_name("main")
    archive = Archive(site.cell.config(MAIN) / "pgbackrest", received=receiver.received)

    async def last_row(archive: Archive) -> list[tuple[int]]:
        spare = spare_cluster_at(archive, name, SUPERUSER, None, parent=work_folder, progress=Bar())
        async with spare as cluster:
            dsn = f"{cluster.conninfo} user={SUPERUSER} dbname={name}"
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                return await (await connection.execute("select max(n) from numbered")).fetchall()

    with refusing_archive(site):
        with site.as_admin(name) as admin:
            admin.execute("create table numbered (n int)")
            for number in range(4):
                admin.execute("insert into numbered values (%s)", (number,))
                write_wal(admin)
            admin.execute("insert into numbered values (4)")
        await asyncio.to_thread(wait_until_received, site)
        assert await last_row(archive) == [(4,)]
        copy = site.root / "received-copy"
        receiver.stop()
        shutil.copytree(receiver.received, copy)
        for path in (copy, *copy.iterdir()):
            give_to_postgres(path)
        receiver.start()
        complete = [file for file in received_files(copy) if file.is_complete]
        complete[-2].path.unlink()
        with pytest.raises(RequestError, match="missing or damaged"):
            await last_row(replace(archive, received=copy))
    with site.as_admin(name) as admin:
        admin.execute("drop table numbered")


async def test_with_a_slot_beyond_its_limit_the_cell_goes_on_and_doctor_says_so(site: Site) -> None:
    def lose_slot() -> None:
        receiver_of(site).stop()
        with site.as_admin() as admin:
            admin.execute("alter system set max_slot_wal_keep_size = '1MB'")
            admin.execute("select pg_reload_conf()")
            is_lost = "select from pg_replication_slots where slot_name = 'plainsql_stream' and wal_status = 'lost'"

            def is_beyond() -> bool:
                write_wal(admin)
                admin.execute("checkpoint")
                return admin.execute(is_lost).rowcount == 1

            wait_for(is_beyond, _LIMIT_S, lambda: "the slot is kept")
            admin.execute("alter system reset max_slot_wal_keep_size")
            admin.execute("select pg_reload_conf()")

    async with writing(site.endpoints) as ledger:
        await ledger.more()
        await asyncio.to_thread(lose_slot)
        await ledger.more()
    found = await asyncio.to_thread(finding, site)
    assert found.startswith("XX The slot of the receiver of its WAL is lost")
    assert "A receiver whose slot is lost" in found
    shown = await asyncio.to_thread(metrics, site)
    assert shown == {"received": 0, "lost": 1}
    # By the guide.
    await asyncio.to_thread(site.follow, site.cell, listed(section("A receiver whose slot is lost")))
    await asyncio.to_thread(wait_until_received, site)
    assert (await asyncio.to_thread(finding, site)).startswith("ok Its WAL is received.")


def lag_s(lost_s: float, ledger: Ledger, rows: dict[tuple[str, str], list[str]]) -> float:
    """How long before the loss the first write that is missing was acknowledged; 0 if none is."""
    found = {kind: set(rows[one]) for kind, (one, _) in HALVES.items()}
    gone = [
        at_s for kind, all_ in ledger.acknowledged.items() for number, at_s in all_.items() if number not in found[kind]
    ]
    return lost_s - min(gone) if gone else 0.0


async def test_what_was_acknowledged_five_seconds_before_the_loss_is_restored(site: Site) -> None:
    receiver, lost = receiver_of(site), site.cell
    async with writing(site.endpoints) as ledger:
        await ledger.more()
        with site.as_admin() as admin:
            close_wal(admin)
        with refusing_archive(site), site.as_admin() as admin:
            closed_s, behind_s = time.time(), [0.0]
            # A file of the WAL becomes complete meanwhile.
            write_wal(admin)
            while time.time() < closed_s + _UNARCHIVED_S:
                await ledger.more(1)
                behind_s += [found for (found,) in admin.execute(_BEHIND)]
            lost_s = time.time()
            await asyncio.to_thread(lost.kill, MAIN)
            known = ledger.copied()
        names = {file.name for file in received_files(receiver.received) if file.is_complete}
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
    print(f"\n| {acknowledged} | {since} | {gone} | {lag:.3f} s | {max(behind_s):.3f} s |")
    assert since > 0
    assert lag <= _MAX_LAG_S + STALL_S
    # What only the receiver had is in the archive now, so that any moment before the loss can still be restored.
    archive = Archive(site.cell.config(MAIN) / "pgbackrest")

    def missing() -> set[str]:
        return names - asyncio.run(archived_among(archive, names))

    assert names
    await asyncio.to_thread(wait_for, lambda: not missing(), _LIMIT_S, missing)
    # The new machine is streamed, too.
    await asyncio.to_thread(wait_until_received, site)
