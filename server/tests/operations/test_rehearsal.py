"""A restore from a real archive is rehearsed: what it finds in a database, in the archive and in the directory."""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.tests.operations.archived_cell import ArchivedCell, archived_cell
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage
from server.tests.operations.upkeep.test_upkeep_metrics import measured
from server.tests.postgres import run_as_postgres
from server.tests.processes import wait_for

pytestmark = pytest.mark.chaos

_BINARIES = Path("/usr/lib/postgresql/15/bin")

# The customer casts its rows to text with a function that fails, has another one evaluated whenever a statement is
# planned, and names a column and a schema as ours are named.
_HOSTILE = """
    create type mood as enum ('bad', 'good');
    create type pair as (a int, b text);
    create table t (t int, whole text, m mood, p pair, price money, at timestamptz, x bytea, n numeric[]);
    insert into t select g, 'row ' || g, 'good', row(g, null)::pair, g, now(), '\\x00', array[g, null]
        from generate_series(1, 1000) g;
    create function called(t) returns text language plpgsql as 'begin raise exception ''called''; end';
    create cast (t as text) with function called(t) as implicit;
    create function planned() returns int language plpgsql immutable as 'begin return 1; end';
    create index on t (planned());
    create or replace function planned() returns int language plpgsql as 'begin raise exception ''called''; end';
    create schema pg; create table pg.pg_class as select 1 as a;
    create function pg.format(text, t) returns text language plpgsql as 'begin raise exception ''called''; end';
    create table parts (a int, b text) partition by list (a);
    create table part_1 partition of parts for values in (1);
    insert into parts values (1, 'one'), (1, 'one');
    create unlogged table forgotten as select 1 as a;
    create table evidence (a int);
    insert into evidence values (1);
    revoke update, delete, truncate on evidence from current_user;
    create extension citext;
    create table cased (c citext);
    insert into cased values ('Case');
"""


@pytest.fixture(scope="module")
def used_cell() -> Iterator[ArchivedCell]:
    with archived_cell() as cell:
        # pgBackRest uses no backup that ended in the second to which it restores.
        backed_up_at = datetime.now(UTC)
        wait_for(lambda: datetime.now(UTC) > backed_up_at + timedelta(seconds=2), 10, lambda: "no time passes")
        yield cell


@pytest.fixture
def cell(used_cell: ArchivedCell) -> ArchivedCell:
    """A cell with an empty database `main` and no record of a rehearsal."""
    stage = used_cell.stage
    stage.ask("delete from rehearsals")
    stage.ask("delete from audit where action = 'operator.rehearsal'")
    stage.ask("delete from cells where name <> 'local'")
    # They stay on the cell, and no one chooses them.
    stage.ask("update databases set state = 'deleted', is_default = false")
    stage.run("database", "create", "--org", "acme", "main")
    return used_cell


def rehearse(cell: ArchivedCell, *options: str, exit_code: int = 0) -> str:
    folders = ("--archive", str(cell.config_folder), "--work-folder", str(cell.work_folder))
    done = cell.stage.run("backup", "rehearse", *folders, *options, exit_code=exit_code)
    assert cell.left_over() == []
    return done.stderr


def recorded(cell: ArchivedCell) -> list[tuple[bool, bool]]:
    return cell.stage.ask("select succeeded_at is not null, failed_at is not null from rehearsals")


def test_a_database_is_the_same_and_that_is_recorded(cell: ArchivedCell) -> None:
    with cell.stage.owner() as owner:
        owner.execute(_HOSTILE)
    metrics = asyncio.run(measured(cell.stage, {}))
    assert metrics["cell_rehearsal_failed local"] == 0
    assert metrics["cell_rehearsal_age_seconds local"] > 0
    done = rehearse(cell)
    assert "It is the same: 4 tables with 1004 rows." in done
    assert "no privileges on them: 1 tables." in done
    assert recorded(cell) == [(True, False)]
    assert (asyncio.run(measured(cell.stage, {})))["cell_rehearsal_age_seconds local"] < 3_600
    assert_found(doctor(cell.stage), "A restore from its archive was rehearsed 0.0 days ago", "", "good")
    cell.stage.ask("update rehearsals set succeeded_at = now() - interval '9 days'")
    assert_found(doctor(cell.stage), "was rehearsed for 9 days", "plainsql-server backup rehearse", "warning")
    noted = cell.stage.ask("select count(*) from audit where action = 'operator.rehearsal'")
    assert noted == [(1,)]


def test_a_database_that_is_being_written_is_compared_at_a_time_between_two_transactions(cell: ArchivedCell) -> None:
    with cell.stage.owner() as owner:
        owner.execute("create table counted (number bigint); create table totals as select 0::bigint as total")
    ended = threading.Event()

    def write() -> int:
        number = 0
        with cell.stage.owner() as owner:
            while not ended.is_set():
                with owner.transaction():
                    owner.execute("update totals set total = total + 1")
                    owner.execute("insert into counted values (%s)", (number,))
                number += 1
                ended.wait(0.002)
        return number

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        try:
            done = rehearse(cell)
        finally:
            ended.set()
        assert sum(writer.result() for writer in writers) > 100
    assert "It is the same: 2 tables" in done


def test_a_transaction_that_is_in_the_archive_before_anyone_sees_it_is_waited_for(cell: ArchivedCell) -> None:
    """As while a commit is written to disk. Here, it waits for a standby."""
    with cell.stage.owner() as owner:
        owner.execute("create table t as select 1 as a")

    def write() -> None:
        with cell.stage.owner() as owner:
            owner.execute("set synchronous_commit = on")
            owner.execute("insert into t values (2)")

    def set_up(standbys: str) -> None:
        with cell.stage.postgres.connect() as admin:
            admin.execute("alter system set synchronous_commit = local")
            admin.execute(f"alter system set synchronous_standby_names = '{standbys}'".encode())
            admin.execute("select pg_reload_conf()")

    def has(condition: str) -> bool:
        with cell.stage.postgres.connect() as admin:
            return admin.execute(f"select from pg_stat_activity where {condition}".encode()).rowcount > 0

    set_up("nobody")
    with ThreadPoolExecutor(2) as pool:
        try:
            writing = pool.submit(write)
            wait_for(lambda: has("wait_event = 'SyncRep'"), 60, lambda: "no transaction waits for a standby")
            rehearsing = pool.submit(rehearse, cell)
            tried = "application_name = 'plainsql-backup' and query ~ '^(LOCK|ROLLBACK|BEGIN)'"
            wait_for(lambda: has(tried) or rehearsing.done(), 60, lambda: "no table is locked")
        finally:
            set_up("")
        writing.result()
        assert "It is the same: 1 tables with 2 rows." in rehearsing.result()


@contextmanager
def stopped(cell: ArchivedCell) -> Iterator[Path]:
    """The cell's data folder while its PostgreSQL does not run."""
    data = cell.config_folder.parent / "data"
    run_as_postgres(_BINARIES / "pg_ctl", "-D", data, "-m", "fast", "-w", "stop")
    yield data
    run_as_postgres(_BINARIES / "pg_ctl", "-D", data, "-l", data.parent / "log", "-w", "start")


def test_a_table_that_is_not_what_the_archive_has_is_found(cell: ArchivedCell) -> None:
    with cell.stage.owner() as owner:
        owner.execute("create table t as select 'as archived' as a; create table beside as select 1 as a")
        (file,) = owner.execute("select pg_relation_filepath('t')").fetchone() or ("",)
    with stopped(cell) as data:
        # As a disk does that returns other bytes than were written.
        content = (data / file).read_bytes()
        assert content.count(b"as archived") == 1
        with (data / file).open("r+b") as damaged:
            damaged.seek(content.index(b"as archived"))
            damaged.write(b"as damaged!")
    failed = rehearse(cell, exit_code=1)
    assert "differs from what it was then: public.t has other values in its 1 rows." in failed
    assert recorded(cell) == [(False, True)]
    assert (asyncio.run(measured(cell.stage, {})))["cell_rehearsal_failed local"] == 1
    assert_found(doctor(cell.stage), "The last rehearsal of a restore from its archive failed", "log", "warning")


def test_an_archive_that_can_not_be_read_is_recorded_until_it_can(cell: ArchivedCell) -> None:
    # A copy of the configuration, so that the cell goes on archiving.
    copied = cell.config_folder.with_name("copied")
    shutil.copytree(cell.config_folder, copied)
    (copied / "conf.d/key.conf").write_text("[global]\nrepo1-cipher-pass=another\n")
    for path in (copied, *copied.rglob("*")):
        shutil.chown(path, cell.config_folder.owner(), cell.config_folder.group())
    with cell.stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
    failed = rehearse(replace(cell, config_folder=copied), exit_code=1)
    assert "The archive has no backup" in failed
    assert "unable to load info file" in failed
    assert recorded(cell) == [(False, True)]
    rehearse(cell)
    ((is_failing,),) = cell.stage.ask("select failed_at > succeeded_at from rehearsals")
    assert not is_failing


def test_a_database_that_is_never_at_rest_is_passed_over_and_says_nothing_about_the_archive(
    cell: ArchivedCell,
) -> None:
    with cell.stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        with owner.transaction():
            owner.execute("update t set a = 2")
            assert "is being written all the time" in rehearse(cell, "--org", "acme", "--database", "main", exit_code=1)
            assert recorded(cell) == []
            cell.stage.run("database", "create", "--org", "acme", "at-rest")
            with cell.stage.owner("at-rest") as at_rest:
                at_rest.execute("create table t as select 1 as a")
            ((other,),) = cell.stage.ask("select id from databases where name = 'at-rest'")
            assert f"Restored the database {other}" in rehearse(cell)


def test_the_archive_of_several_cells_needs_a_name(cell: ArchivedCell) -> None:
    cell.stage.ask(
        "insert into cells (id, name, conninfo, admin_role, state)"
        " select id || 'x', 'other', conninfo, admin_role, state from cells"
    )
    with cell.stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
    assert "--cell" in rehearse(cell, exit_code=2)
    assert "It is the same" in rehearse(cell, "--cell", "local")


def test_a_backup_of_a_database_of_that_name_is_a_backup(stage: Stage, tmp_path: Path) -> None:
    stage.run("database", "create", "--org", "acme", "rehearse")
    stage.run("backup", "--org", "acme", "rehearse", "--output", str(tmp_path / "file"))
    assert os.path.getsize(tmp_path / "file")
