"""`plainsql-server backups` with a real directory and cell: every database, through programs, and back."""

import asyncio
from pathlib import Path

from plainsql_server.control_plane import databases, organizations
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.upkeep.backup_record import BackupState, backup_state
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage


async def _second(stage: Stage) -> None:
    async with Directory.open(stage.dsn) as directory:
        organization = await organizations.get(directory, "acme")
        await databases.create(directory, organization.id, "second")


async def _state(stage: Stage) -> BackupState:
    async with Directory.open(stage.dsn) as directory:
        return await backup_state(directory)


def files(folder: Path) -> dict[str, int]:
    """How many files each database has, whatever their names."""
    return {each.name: len(list(each.iterdir())) for each in folder.iterdir() if each.is_dir()}


def test_all_databases_are_backed_up_but_the_one_that_cannot(stage: Stage, tmp_path: Path) -> None:
    asyncio.run(_second(stage))
    ids = dict(stage.ask("select name, id from databases"))
    with stage.owner() as owner:
        owner.execute("create table t as select g from generate_series(1, 100) g")
    with stage.owner("second") as owner:
        owner.execute("create table hidden (a int)")
        owner.execute("alter table hidden enable row level security, force row level security")
    # An old backup of each: only that of the database whose backup succeeds is due.
    for each in ids.values():
        (tmp_path / each).mkdir()
        (tmp_path / each / "20200101T000000Z-abcdef.backup").write_bytes(b"old")
    command = ["backups", "--to", str(tmp_path), "--keep-days", "7", "--pipe", "gzip -c"]
    failed = stage.run(*command, exit_code=1)
    assert ids["second"] in failed.stderr
    assert "ROW LEVEL SECURITY" in failed.stderr
    assert "2 of 3 backed up; 1 old backups deleted" in failed.stderr
    assert files(tmp_path) == {"directory": 1, ids["main"]: 1, ids["second"]: 1}
    state = asyncio.run(_state(stage))
    assert (state.databases, state.never, state.failing) == (2, 1, 1)
    with stage.owner("second") as owner:
        owner.execute("alter table hidden no force row level security")
    stage.run(*command)
    state = asyncio.run(_state(stage))
    assert (state.databases, state.never, state.failing) == (2, 0, 0)
    assert state.oldest_age_s is not None
    assert state.oldest_age_s < 3_600
    assert state.directory_age_s is not None
    restore = ["restore", "--org", "acme", "copy", "--input", str(newest(tmp_path / ids["main"])), "--pipe"]
    refused = stage.run(*restore, "sh -c 'gzip -dc; exit 3'", exit_code=1)
    assert "exit code 3" in refused.stderr
    assert stage.ask("select from databases where name = 'copy' and state = 'ready'") == []
    stage.run(*restore, "gzip -dc")
    assert stage.checksums("copy") == stage.checksums()


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


def test_a_pipe_that_fails_leaves_no_file_and_deletes_none(stage: Stage, tmp_path: Path) -> None:
    ((database,),) = stage.ask("select id from databases")
    (tmp_path / database).mkdir()
    old = tmp_path / database / "20200101T000000Z-abcdef.backup"
    old.write_bytes(b"old")
    failed = stage.run("backups", "--to", str(tmp_path), "--pipe", "false | cat", exit_code=1)
    assert "false ended with exit code 1" in failed.stderr
    assert files(tmp_path) == {"directory": 0, database: 1}
    assert old.exists()


def test_the_folder_of_another_directory_is_not_touched(stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / f"db_{'a' * 32}"
    other.mkdir()
    (other / "20200101T000000Z-abcdef.backup").write_bytes(b"old")
    refused = stage.run("backups", "--to", str(tmp_path), exit_code=1)
    assert "none of a database that this directory knows" in refused.stderr
    assert files(tmp_path) == {other.name: 1}


def test_doctor_reports_old_and_failing_backups_and_commands_with_secrets(stage: Stage, tmp_path: Path) -> None:
    stage.run("backups", "--to", str(tmp_path))
    found = doctor(stage)
    assert_found(found, "All 1 databases were backed up or created within", "", "good")
    assert_found(found, "It has no standby and archives no WAL", "archive_command", "warning")
    assert_found(found, "Its oldest transaction ID is", "", "good")
    stage.ask("update backups set succeeded_at = now() - interval '3 days', failed_at = now()")
    with stage.postgres.connect() as admin:
        admin.execute("alter system set restore_command = 'PGPASSWORD=hunter2 push %p'")
        admin.execute("select pg_reload_conf()")
    try:
        found = doctor(stage)
    finally:
        with stage.postgres.connect() as admin:
            admin.execute("alter system reset restore_command")
            admin.execute("select pg_reload_conf()")
    ((database,),) = stage.ask("select id from databases")
    assert_found(found, f"older than 26 hours for {database}", "plainsql-server backups", "warning")
    assert_found(found, "The last backup of the directory is older", "plainsql-server backups", "warning")
    assert_found(found, "The last attempt failed for 2", "log", "warning")
    assert_found(found, "restore_command looks as if it contains a secret", "file", "warning")
    assert "hunter2" not in str(found)
    assert not [each for each in doctor(stage, upkeep="off") if each["check"] == "backups"]


def test_doctor_takes_new_databases_for_up_to_date(stage: Stage) -> None:
    assert_found(doctor(stage), "All 1 databases were backed up or created within", "", "good")
    assert_found(doctor(stage, "--backup-max-age-hours", "0"), "older than 0 hours", "timer", "warning")
