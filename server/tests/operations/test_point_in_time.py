"""A database is restored as it was at a moment, from a real archive: what was acknowledged before it, nothing later.

Some transactions span two databases, as customers send them to the service.

`PLAINSQL_TEST_POINTS_IN_TIME=20` is the full size: twenty random moments out of ten minutes, with writers on fifty
databases.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from plainsql_server.cli.progress import Bar
from plainsql_server.data_plane.spanning import SpanningStep
from plainsql_server.operations.point_in_time.pgbackrest import Archive
from plainsql_server.operations.point_in_time.spare_cluster import spare_cluster_at
from server.tests.consistency.two_cells import CRASHING, holding
from server.tests.load import Node, running_node, size
from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.ledgers import (
    SETTINGS,
    Entry,
    Written,
    entries,
    make_ledger,
    new_key,
    write_over_both,
    writers,
)
from server.tests.postgres import SUPERUSER
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

POINTS = size("PLAINSQL_TEST_POINTS_IN_TIME", 3)
IS_FULL = POINTS >= 20
DATABASES, WRITING_S = (50, 600.0) if IS_FULL else (3, 3.0)


@pytest.fixture(scope="module")
def cell() -> Iterator[ArchivedCell]:
    with archived_cell(SETTINGS) as cell:
        yield cell


@pytest.fixture(scope="module")
def endless(cell: ArchivedCell) -> str:
    """A database that takes longer to restore than any test: its only row is checked by a function that sleeps."""
    name, checked = "endless", "create or replace function checked(int) returns boolean language sql as"
    cell.stage.run("database", "create", "--org", "acme", name)
    with cell.stage.owner(name) as owner:
        owner.execute(f"{checked} 'select true'")
        owner.execute("create table slow (a int check (checked(a)))")
        owner.execute("insert into slow values (1)")
        owner.execute(f"{checked} 'select pg_sleep(300) is not null'")
    return name


@pytest.fixture(scope="module")
def crash_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names a step at which the data plane stands still."""
    return tmp_path_factory.mktemp("crash") / "crash"


@pytest.fixture(scope="module")
def node(cell: ArchivedCell, crash_file: Path) -> Iterator[Node]:
    """A data plane, for transactions over several databases. No control plane finishes what it leaves."""
    with running_node(cell.stage.dsn, CRASHING, test_crash_file=crash_file, test_hold_s=60) as node:
        yield node


def restored(cell: ArchivedCell, name: str, point: datetime, to: str) -> tuple[list[Entry], int]:
    """A ledger as it was, and how many prepared transactions the restore says are missing in it."""
    done = cell.stage.run("restore", "--org", "acme", to, "--from", name, *cell.options(point.isoformat()))
    missing = re.search(r"Prepared transactions that are missing: (\d+)\.", done.stderr)
    return entries(cell.stage, to, restored=True), int(missing[1]) if missing else 0


def check(point: datetime, there: list[Entry], live: list[Entry], written: list[Written], missing: int) -> None:
    """What was restored is what was committed until the moment, by the cell's clock and by its sequence."""
    assert live, "nothing was written"
    assert any(each.acknowledged_at for each in written), "nothing was acknowledged"
    assert [(each.seq, each.name) for each in there] == [(each.seq, each.name) for each in live[: len(there)]]
    assert all(each.written_at <= point for each in there)
    assert all(each.committed_at and each.committed_at <= point for each in live[: len(there)]), "committed later"
    names = {each.name for each in there}
    acknowledged = {each.name for each in written if each.acknowledged_at and each.acknowledged_at <= point}
    assert acknowledged <= names, "acknowledged and lost"
    assert not names & {each.name for each in written if each.sent_at > point}, "later than the moment"
    sent = {each.name for each in written if len(each.databases) > 1 and each.sent_at <= point}
    assert missing <= len(sent - names), "reported as prepared, and sent later or not missing"


@pytest.mark.timeout(240 + 2 * WRITING_S + 60 * POINTS)
def test_a_restored_point_has_what_was_acknowledged_before_and_nothing_later(cell: ArchivedCell, node: Node) -> None:
    stage, seed = cell.stage, random.randrange(1 << 32)
    names = [f"ledger-{number}" for number in range(DATABASES)]
    for number, name in enumerate(names):
        if number == DATABASES // 2:
            # The first half of the databases is in a backup, and the second in the WAL alone.
            cell.back_up("diff")
        make_ledger(stage, name)
    began_at = datetime.now(UTC)
    with writers(stage, node, names) as written:
        time.sleep(WRITING_S)
    spanning = sum(len(each.databases) > 1 and each.acknowledged_at is not None for each in written)
    print(f"seed {seed}: {len(written)} transactions, {spanning} of them over two databases")
    assert spanning > 0
    live = {name: entries(stage, name) for name in names}
    chance, found = random.Random(seed), 0
    for number in range(POINTS):
        name, point = chance.choice(names), began_at + timedelta(seconds=chance.uniform(0.3, WRITING_S))
        began_s = time.monotonic()
        there, missing = restored(cell, name, point, f"restored-{number}")
        print(f"{name} at {point} in {time.monotonic() - began_s:.1f} s: {len(there)} of {len(live[name])}, {missing}")
        check(point, there, live[name], [each for each in written if name in each.databases], missing)
        found += len(there)
        assert cell.left_over() == []
    assert found, "each restored ledger is empty"


@pytest.mark.parametrize(
    ("step", "has"),
    [(SpanningStep.PREPARED, (False, False)), (SpanningStep.COMMIT_SENT_TO_ONE, (True, False))],
)
def test_a_transaction_over_two_databases_that_was_being_committed_is_reported_where_it_is_missing(
    cell: ArchivedCell, node: Node, crash_file: Path, step: SpanningStep, has: tuple[bool, bool]
) -> None:
    """At the moment, it is prepared: in both databases and not decided, or in one, and committed in the other."""
    stage, key = cell.stage, new_key(cell.stage)
    names = [f"{step.name.lower().replace('_', '-')}-{side}" for side in ("left", "right")]
    for name in names:
        make_ledger(stage, name)
    prepared = "select from pg_prepared_xacts"
    with ThreadPoolExecutor(1) as pool, stage.postgres.connect() as admin:
        assert write_over_both(node, key, names, "spanning 0").acknowledged_at
        with holding(crash_file, step) as is_held:
            writing = pool.submit(write_over_both, node, key, names, "spanning 1")
            wait_for(is_held, 30, lambda: "no transaction is being committed")
            wait_for(lambda: admin.execute(prepared).rowcount == 2 - sum(has), 30, lambda: "it is not prepared")
            point = datetime.now(UTC)
        assert writing.result().acknowledged_at
    for name, is_there in zip(names, has, strict=True):
        there, missing = restored(cell, name, point, f"{name}-then")
        assert [each.name for each in there] == ["spanning 0", "spanning 1"][: 1 + is_there]
        assert missing == 1 - is_there
        live = entries(stage, name)
        assert [each.name for each in live] == ["spanning 0", "spanning 1"]
        assert is_there == (live[1].committed_at is not None and live[1].committed_at <= point)


def test_a_database_is_replaced_by_what_it_was_and_its_later_content_is_kept(cell: ArchivedCell) -> None:
    stage = cell.stage
    stage.run("database", "create", "--org", "acme", "mistaken")
    with stage.owner("mistaken") as owner:
        owner.execute("create table t as select 'kept' as a")
        point = datetime.now(UTC)
        owner.execute("drop table t")
    ((before, since),) = stage.ask("select id, content_since from databases where name = 'mistaken'")
    command = ("restore", "--org", "acme", "mistaken", "--replace", *cell.options(point.isoformat()))
    assert stage.run(*command).stdout.strip() == before
    with stage.owner("mistaken") as owner:
        assert owner.execute("select a from t").fetchall() == [("kept",)]
    assert stage.ask("select state from databases where name like 'mistaken-replaced%%'") == [("deleting",)]
    ((now_since,),) = stage.ask("select content_since from databases where name = 'mistaken'")
    assert now_since > point
    assert stage.ask("select content_since from databases where name like 'mistaken-replaced%%'") == [(since,)]
    assert cell.left_over() == []


def test_a_database_that_was_deleted_for_good_is_restored_by_its_id(cell: ArchivedCell) -> None:
    stage = cell.stage
    made = stage.run("database", "create", "--org", "acme", "gone").stdout.strip()
    with stage.owner("gone") as owner:
        owner.execute("create table t as select 1 as a")
    point = datetime.now(UTC)
    stage.run("database", "delete", made, "--permanently", "--yes")
    stage.run("restore", "--org", "acme", "back", "--from", made, *cell.options(point.isoformat()))
    with stage.owner("back") as owner:
        assert owner.execute("select a from t").fetchall() == [(1,)]


def test_a_database_that_did_not_exist_then_is_refused(cell: ArchivedCell) -> None:
    point = datetime.now(UTC)
    cell.stage.run("database", "create", "--org", "acme", "young")
    options = cell.options(point.isoformat())
    refused = cell.stage.run("restore", "--org", "acme", "never", "--from", "young", *options, exit_code=1)
    assert "was not on the cell" in refused.stderr


def test_a_time_is_refused_at_which_the_content_was_there_but_not_in_service(cell: ArchivedCell) -> None:
    cell.stage.run("database", "create", "--org", "acme", "filled")
    point = datetime.now(UTC)
    with cell.stage.owner("filled") as owner:
        owner.execute("create table t ()")
    with psycopg.connect(cell.stage.dsn, autocommit=True) as directory:
        # As when a draft is adopted.
        directory.execute("update databases set content_since = now() where name = 'filled'")
    options = cell.options(point.isoformat())
    refused = cell.stage.run("restore", "--org", "acme", "never", "--from", "filled", *options, exit_code=1)
    assert "or not complete" in refused.stderr


def test_a_time_at_which_no_connections_were_allowed_is_restored(cell: ArchivedCell) -> None:
    cell.stage.run("database", "create", "--org", "acme", "closed")
    engine_name = cell.stage.names("closed")[0]
    with cell.stage.owner("closed") as owner:
        owner.execute("create table t as select 1 as a")
    with cell.stage.postgres.connect() as admin:
        admin.execute(f"alter database {engine_name} allow_connections false")
        point = datetime.now(UTC)
        admin.execute(f"alter database {engine_name} allow_connections true")
    options = cell.options(point.isoformat())
    cell.stage.run("restore", "--org", "acme", "closed-before", "--from", "closed", *options)
    with cell.stage.owner("closed-before") as owner:
        assert owner.execute("select a from t").fetchall() == [(1,)]


def test_nothing_is_left_of_a_restore_that_was_killed(cell: ArchivedCell, endless: str) -> None:
    stage = cell.stage
    options = cell.options(datetime.now(UTC).isoformat())
    restoring = stage.start("restore", "--org", "acme", "killed", "--from", endless, *options, stderr=subprocess.PIPE)
    postmaster = _started(cell, restoring)
    restoring.send_signal(signal.SIGKILL)
    restoring.communicate(timeout=30)
    wait_for(lambda: _has_ended(postmaster), 30, lambda: "the spare cluster outlives its command")
    # Its folder is removed by the next one.
    assert len(cell.left_over()) == 1
    stage.run("restore", "--org", "acme", "survived", "--from", "main", *options)
    assert cell.left_over() == []
    assert stage.checksums("survived") == stage.checksums()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_restore_that_is_ended_in_order_leaves_nothing(cell: ArchivedCell, endless: str, how: signal.Signals) -> None:
    options = cell.options(datetime.now(UTC).isoformat())
    restoring = cell.stage.start(
        "restore", "--org", "acme", "ended", "--from", endless, *options, stderr=subprocess.PIPE
    )
    _started(cell, restoring)
    restoring.send_signal(how)
    _, output = restoring.communicate(timeout=60)
    assert restoring.returncode == 1
    assert f"Ended by {how.name}." in output.decode()
    assert cell.left_over() == []


def test_nothing_is_left_if_the_postmaster_of_the_spare_cluster_is_killed(cell: ArchivedCell, endless: str) -> None:
    options = cell.options(datetime.now(UTC).isoformat())
    restoring = cell.stage.start(
        "restore", "--org", "acme", "ended", "--from", endless, *options, stderr=subprocess.PIPE
    )
    os.kill(_started(cell, restoring), signal.SIGKILL)
    _, output = restoring.communicate(timeout=60)
    assert restoring.returncode == 1, output
    assert "Traceback" not in output.decode()
    assert cell.left_over() == []


def test_pgbackrest_ends_with_a_restore_that_was_killed(cell: ArchivedCell, endless: str) -> None:
    options = cell.options(datetime.now(UTC).isoformat())
    command = ("restore", "--org", "acme", "killed-early", "--from", endless, *options)
    restoring = cell.stage.start(*command, stderr=subprocess.DEVNULL)
    wait_for(lambda: _using(cell.work_folder) != [], 60, lambda: "pgBackRest was not started")
    restoring.send_signal(signal.SIGKILL)
    restoring.wait(30)
    wait_for(lambda: _using(cell.work_folder) == [], 30, lambda: "pgBackRest outlives its command")
    cell.stage.run("restore", "--org", "acme", "survived-early", "--from", "main", *options)
    assert cell.left_over() == []


def _using(work_folder: Path) -> list[str]:
    """The processes of pgBackRest that restore to the folder."""
    found = subprocess.run(["pgrep", "-f", f"pgbackrest.*{work_folder}"], capture_output=True, text=True, check=False)
    return found.stdout.split()


def _started(cell: ArchivedCell, restoring: "subprocess.Popen[bytes]") -> int:
    """Waits until the restore has a spare cluster. Returns the id of its postmaster."""
    found: list[int] = []

    def is_started() -> bool:
        assert restoring.poll() is None, restoring.communicate()
        postmaster = _postmaster(cell.work_folder)
        found.extend([postmaster] if postmaster else [])
        return bool(found)

    wait_for(is_started, 120, lambda: "no spare cluster was started")
    return found[0]


def _postmaster(work_folder: Path) -> int | None:
    files = list(work_folder.glob("*/pg/data/postmaster.pid"))
    lines = files[0].read_text().splitlines() if files else []
    # Only what runs in the spare's own folder: the file of the cell is not in a backup.
    return int(lines[0]) if len(lines) > 1 and os.path.exists(f"/proc/{lines[0]}") else None


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_key_of_the_archive_is_in_no_setting_that_a_customer_can_read(cell: ArchivedCell) -> None:
    key = (cell.config_folder / "conf.d/key.conf").read_text().split("repo1-cipher-pass=")[1].strip()
    with cell.stage.owner() as owner:
        shown = owner.execute("select string_agg(setting, ' ') from pg_settings").fetchone()
        assert shown is not None
        assert key not in shown[0]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("select pg_read_file(%s)", (str(cell.config_folder / "conf.d/key.conf"),))
    repository = cell.config_folder.parent / "repository"
    content = b"".join(file.read_bytes() for file in repository.rglob("*") if file.is_file())
    assert b"plainsql_template" not in content, "it is not encrypted"


def test_a_restore_writes_only_to_its_own_folder_whatever_the_archives_configuration_says(cell: ArchivedCell) -> None:
    """Another database is in a tablespace, and the operator's configuration restores with delta and links, there."""
    stage, elsewhere = cell.stage, cell.config_folder.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.chown(elsewhere, cell.config_folder.owner(), cell.config_folder.group())
    stage.run("database", "create", "--org", "acme", "beside")
    with stage.owner("beside") as owner:
        owner.execute("create table placed as select generate_series(1, 1000) as a")
    own = cell.config_folder / "conf.d/own.conf"
    with stage.postgres.connect(database=stage.names("beside")[0]) as admin:
        admin.execute(f"create tablespace elsewhere location '{elsewhere}'")
        admin.execute("alter table placed set tablespace elsewhere")
        admin.execute("vacuum freeze placed")
        try:
            early = cell.options(datetime.now(UTC).isoformat())
            cell.back_up()
            backed_up_at = datetime.now(UTC)
            wait_for(lambda: datetime.now(UTC) > backed_up_at + timedelta(seconds=2), 10, lambda: "no time passes")
            own.write_text(f"[plainsql]\ndelta=y\nlink-all=y\ntablespace-map=elsewhere={elsewhere}\n")
            point, before = datetime.now(UTC), _files_of(elsewhere)
            assert before
            stage.run("restore", "--org", "acme", "untouched", "--from", "main", *cell.options(point.isoformat()))
            assert _files_of(elsewhere) == before
            # Its backup is older than the tablespace.
            refused = stage.run("restore", "--org", "acme", "never", "--from", "main", *early, exit_code=1)
            assert "got a tablespace" in refused.stderr
            assert _files_of(elsewhere) == before
            assert cell.left_over() == []
        finally:
            own.unlink(missing_ok=True)
            admin.execute("drop table placed")
            admin.execute("drop tablespace elsewhere")


async def test_the_spare_cluster_has_as_many_locks_and_prepared_transactions_as_the_cell(cell: ArchivedCell) -> None:
    names = "max_connections", "max_prepared_transactions", "max_locks_per_transaction"
    shown = "select " + ", ".join(f"current_setting('{name}')::int" for name in names)
    with cell.stage.postgres.connect() as admin:
        (allowed,) = admin.execute(shown.encode()).fetchall()
    # A backup that ended in this second is not used.
    began_at = datetime.now(UTC)
    wait_for(lambda: datetime.now(UTC) > began_at + timedelta(seconds=2), 10, lambda: "no time passes")
    archive, point = Archive(cell.config_folder), datetime.now(UTC)
    with cell.stage.postgres.connect() as admin:
        admin.execute("select pg_current_xact_id()")
        (closed,) = admin.execute("select pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
        archived = "select from pg_stat_archiver where last_archived_wal >= %s"
        wait_for(lambda: admin.execute(archived, (closed,)).rowcount > 0, 30, lambda: "it is not archived")
    engine_name = cell.stage.names()[0]
    spare = spare_cluster_at(archive, engine_name, SUPERUSER, point, parent=cell.work_folder, progress=Bar())
    async with spare as running:
        with psycopg.connect(f"{running.conninfo} user={SUPERUSER} dbname=postgres") as admin:
            (found,) = admin.execute(shown.encode()).fetchall()
    assert all(each >= least for each, least in zip(found, allowed, strict=True)), (found, allowed)
    assert found[0] * found[2] > 5_376


def test_prepared_transactions_of_the_database_are_counted_and_left_out(cell: ArchivedCell) -> None:
    stage = cell.stage
    for name in ("prepared", "prepared-too"):
        stage.run("database", "create", "--org", "acme", name)
        with stage.owner(name) as owner:
            owner.execute("create table t as select 'committed' as a")
            owner.execute("create table locked ()")
    prepared = [("prepared", "plain"), ("prepared", "locking"), ("prepared-too", "others")]
    try:
        for name, gid in prepared:
            with stage.postgres.connect(database=stage.names(name)[0]) as admin:
                admin.execute("begin")
                admin.execute("lock table locked" if gid == "locking" else "insert into t values ('prepared')")
                admin.execute(f"prepare transaction '{gid}'")
        options = cell.options(datetime.now(UTC).isoformat())
        done = stage.run("restore", "--org", "acme", "prepared-before", "--from", "prepared", *options)
        assert "Prepared transactions that are missing: 2." in done.stderr
        with stage.owner("prepared-before") as owner:
            assert owner.execute("select a from t").fetchall() == [("committed",)]
    finally:
        for name, gid in prepared:
            with stage.postgres.connect(database=stage.names(name)[0]) as admin:
                admin.execute(f"rollback prepared '{gid}'")


def _files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (each.st_ino, each.st_mtime_ns) for path, each in found.items()}
