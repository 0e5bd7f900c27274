"""Backups and restores of customers' databases, with the real commands on a real cell."""

import asyncio
import gzip
import hashlib
import io
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from plainsql_server.cli.progress import Bar
from plainsql_server.control_plane import databases, organizations
from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.core.errors import RequestError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.databases import DatabaseRecord
from plainsql_server.operations import backup
from server.tests.operations.stage import SIZE_MB, Stage
from server.tests.processes import wait_for


def fill(stage: Stage, size_mb: int) -> None:
    """Tables of several kinds, about as large as asked for in all."""
    with stage.owner() as owner:
        owner.execute("create table narrow (id bigint primary key, n int, at timestamptz default now())")
        owner.execute("create table wide (id int primary key, body text, raw bytea, document jsonb)")
        owner.execute("create table parted (id int, day date) partition by range (id)")
        owner.execute("create table parted_low partition of parted for values from (0) to (1000)")
        owner.execute("create table parted_high partition of parted default")
        owner.execute("insert into parted select g, date '2026-01-01' + g % 300 from generate_series(1, 5000) g")
        owner.execute("insert into narrow select g, g %% 1000, now() from generate_series(1, %s) g", (size_mb * 6_000,))
        # What does not compress stays as large as it is.
        owner.execute(
            "insert into wide select g, (select string_agg(md5(random()::text), '') from generate_series(1, 20) x"
            " where x > g * 0), decode(repeat(md5(g::text), 40), 'hex'), jsonb_build_object('g', g, 'x', md5(g::text))"
            " from generate_series(1, %s) g",
            (size_mb * 350,),
        )
        owner.execute("create index on wide using gin (document)")
        owner.execute("create index on narrow (n)")
        owner.execute("alter table parted_low add check (id < 1000)")
        owner.execute("create sequence counter")
        owner.execute("select nextval('counter') from generate_series(1, 41)")


@pytest.mark.timeout(240 + 3 * SIZE_MB)
def test_a_restored_backup_is_identical(stage: Stage, tmp_path: Path) -> None:
    fill(stage, SIZE_MB)
    before = stage.checksums()
    began_s = time.monotonic()
    file = stage.backup(tmp_path / "main.backup")
    backup_s = time.monotonic() - began_s
    assert file.stat().st_mode & 0o777 == 0o600
    restored = stage.run("restore", "--org", "acme", "copy", "--input", str(file))
    restore_s = time.monotonic() - began_s - backup_s
    with stage.admin() as admin:
        (stored_bytes,) = admin.execute("select pg_database_size(current_database())").fetchone() or (0,)
    print(
        f"backup: a database of {stored_bytes / 1e6:.0f} MB in {len(before)} tables, {backup_s:.1f} s to a file of"
        f" {file.stat().st_size / 1e6:.0f} MB, restored in {restore_s:.1f} s"
    )
    assert stored_bytes >= SIZE_MB * 1_000_000
    assert restored.stdout.startswith("db_")
    assert stage.checksums("copy") == before == stage.checksums("main")
    with stage.owner("copy") as owner:
        assert owner.execute("select nextval('counter')").fetchone() == (42,)
        indexes = "select count(*) from pg_indexes where schemaname = 'public'"
        assert owner.execute(indexes).fetchone() == (4,)


def test_a_backup_to_standard_output_contains_only_the_backup(stage: Stage) -> None:
    command = ["backup", "--org", "acme", "main"]
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
    piped = stage.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    content, stderr = piped.communicate(timeout=60)
    assert piped.returncode == 0, stderr
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        names = tar.getnames()
    assert (names[0], names[-1]) == ("manifest.json", "end.json")
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        stage.run("restore", "--org", "acme", "copy", stdin=file)
    assert stage.checksums("copy") == stage.checksums()


def test_a_backup_that_cannot_be_written_fails_with_one_line_and_leaves_no_file(stage: Stage, tmp_path: Path) -> None:
    with stage.owner() as owner:
        owner.execute("create table t as select g, md5(g::text) from generate_series(1, 50000) g")
    with Path("/dev/full").open("wb") as full:
        piped = stage.start("backup", "--org", "acme", "main", stdout=full, stderr=subprocess.PIPE)
        _, stderr = piped.communicate(timeout=60)
    assert piped.returncode == 1
    assert stderr.decode().splitlines()[-1] == "Error: Standard output can't be written: No space left on device."
    assert b"Traceback" not in stderr
    missing = stage.run("backup", "--org", "acme", "main", "--output", str(tmp_path / "no/where"), exit_code=1)
    assert "can't be written: No such file or directory" in missing.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_restored_database_has_the_same_schema_owners_rights_and_policies(stage: Stage, tmp_path: Path) -> None:
    _, owner_role, reader_role = stage.names()
    with stage.owner() as owner:
        for statement in SCHEMA:
            owner.execute(statement.format(owner=owner_role, reader=reader_role))
    file = stage.backup(tmp_path / "main.backup")
    stage.run("restore", "--org", "acme", "copy", "--input", str(file))
    assert described(stage, "copy") == described(stage, "main")
    with stage.reader("copy") as reader:
        assert reader.execute("select * from shown").fetchall() == [(1,)]
        for refused in ("select * from hidden", "insert into shown values (2)", "select * from plainsql.requests"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(refused)
    with stage.owner("copy") as owner:
        # What is made from now on is shown to the reader as in every database.
        owner.execute("create table later as select 7 as a")
        assert owner.execute("select lo_get(4711)").fetchone() == (b"large",)
    with stage.reader("copy") as reader:
        assert reader.execute("select a from later").fetchone() == (7,)


SCHEMA = [
    "create table shown (a int primary key)", "insert into shown values (1)",
    "create table hidden (a int)", "revoke select on hidden from {reader}",
    "create table frozen as select g from generate_series(1, 10) g", "revoke insert, update on frozen from {owner}",
    "create schema inner_rooms", "create table inner_rooms.t (a int generated always as identity, b numeric(9, 3))",
    "create function doubled(a int) returns int language sql immutable as 'select $1 * 2'",
    "create index on shown (doubled(a))", "create domain positive as int check (value > 0)",
    "create function tick() returns trigger language plpgsql as $$ begin new.b := 1; return new; end $$",
    "create trigger tick before insert on inner_rooms.t for each row execute function tick()",
    "create view looking as select a, doubled(a) from shown", "create materialized view kept as select a from shown",
    "alter table hidden enable row level security",
    "create policy readers on hidden to {reader} using (current_user = '{reader}')",
    "create type mood as enum ('good', 'bad')", "comment on table shown is 'a table''s comment'",
    "select lo_from_bytea(4711, 'large')", "create statistics together (dependencies) on a, b from inner_rooms.t",
    "create aggregate total (int) (sfunc = int4pl, stype = int)", "grant update (b) on inner_rooms.t to {reader}",
    "alter default privileges in schema inner_rooms grant insert on tables to {reader}",
    "create collation german (provider = icu, locale = 'de')", "create table \"strange \"\" name\" (\"col umn\" text)",
]  # fmt: skip


def described(stage: Stage, database: str) -> str:
    """The whole schema as pg_dump tells it, with the roles by what they are."""
    engine_name, owner, reader = stage.names(database)
    command = ["/usr/lib/postgresql/15/bin/pg_dump", "--schema-only", stage.postgres.dsn(database=engine_name)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # A random word against tampering, other on each run.
    lines = [line for line in shown.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]
    return "\n".join(lines).replace(owner, "OWNER").replace(reader, "READER")


def test_request_records_are_restored_without_the_secret(stage: Stage, tmp_path: Path) -> None:
    with stage.admin() as admin:
        admin.execute("insert into plainsql.requests values ('k1', 'req_1', '\\x01')")
        admin.execute("insert into plainsql.responses values ('k1', '\\x7b7d')")
    file = stage.backup(tmp_path / "main.backup")
    with stage.admin() as admin:
        admin.execute("insert into plainsql.requests values ('k2', 'req_2', '\\x02')")
    stage.run("restore", "--org", "acme", "copy", "--input", str(file))
    recorded = (
        "select key, request_id, body_hash, body, claimed_at from plainsql.requests join plainsql.responses using (key)"
    )
    with stage.admin() as main, stage.admin("copy") as copy:
        assert copy.execute(recorded).fetchall() == main.execute(recorded).fetchall() != []
        assert copy.execute("select count(*) from plainsql.requests").fetchone() == (1,)
        hashes = "select hash from plainsql.secrets"
        assert copy.execute(hashes).fetchall() != main.execute(hashes).fetchall()
    ((secret,),) = stage.ask("select record_secret from databases where name = 'main'")
    content = file.read_bytes()
    assert secret.encode() not in content
    assert hashlib.sha256(secret.encode()).digest() not in content


def test_a_replaced_database_keeps_its_id_and_keys_and_its_old_content_can_be_restored(
    stage: Stage, tmp_path: Path
) -> None:
    others = stage.on_cell()
    with stage.owner() as owner:
        owner.execute("create table t as select 'old' as a")
    file = stage.backup(tmp_path / "main.backup")
    with stage.owner() as owner:
        owner.execute("update t set a = 'new'")
    key = stage.run("key", "create", "--org", "acme", "--name", "k", "--scope", "read", "--database", "main").stdout
    ((before,),) = stage.ask("select id from databases where name = 'main'")
    restored = stage.run("restore", "--org", "acme", "main", "--replace", "--input", str(file)).stdout.strip()
    assert (restored, bool(key)) == (before, True)
    assert stage.ask("select name, state, is_default from databases where id = %s", before) == [("main", "ready", True)]
    assert stage.ask("select database_id from api_keys where revoked_at is null") == [(before,)]
    with stage.owner() as owner:
        assert owner.execute("select a from t").fetchall() == [("old",)]
    ((name, state, restores_to),) = stage.ask("select name, state, restores_to from databases where id <> %s", before)
    assert (state, restores_to) == ("deleting", "ready")
    with stage.owner(name) as owner:
        assert owner.execute("select a from t").fetchall() == [("new",)]
    assert stage.on_cell() == others


def as_before_ids(file: Path) -> Path:
    """The backup as an early version made it, without ids in its manifest. Its checksum is wrong, as is found later."""
    old = file.with_suffix(".old")
    content = file.read_bytes()
    for field in (b'"database_id"', b'"organization_id"'):
        assert field in content
        content = content.replace(field, field.replace(b"_id", b"_no"), 1)
    old.write_bytes(content)
    return old


def test_a_database_is_not_replaced_by_a_backup_of_another_by_mistake(stage: Stage, tmp_path: Path) -> None:
    file = stage.backup(tmp_path / "main.backup")
    stage.run("database", "create", "--org", "acme", "other")
    command = ["restore", "--org", "acme", "other", "--replace", "--input"]
    for each in (file, as_before_ids(file)):
        assert "backup of the database 'main'" in stage.run(*command, str(each), exit_code=1).stderr
    stage.run(*command, str(file), "--of-another")


def test_a_backup_without_ids_is_recognized_after_its_database_was_replaced_or_moved(
    stage: Stage, tmp_path: Path
) -> None:
    file = stage.backup(tmp_path / "main.backup")
    old = str(as_before_ids(file))
    stage.run("database", "create", "--org", "acme", "other")
    stage.run("restore", "--org", "acme", "main", "--replace", "--input", str(file))
    second_cell = """insert into cells select (jsonb_populate_record(cells,
        '{"id": "cell_2", "name": "second", "conninfo": "host=/nowhere"}')).* from cells returning id"""
    assert stage.ask(second_cell) == [("cell_2",)]
    was_moved = (
        "insert into moves (id, database_id, copy_id, from_cell_id, to_cell_id, state, alive_until)"
        " select 'mov_1', target_id, details ->> 'replaced_id', 'cell_2', cell_id, 'done', now()"
        " from audit join databases on databases.id = target_id where action = 'database.restore_backup' returning id"
    )
    was_not_replaced = "delete from audit where action = 'database.restore_backup' returning id"
    # Moves swap the rows' places and roles as replacements do.
    for change in ("select 1", f"with moved as ({was_moved}) {was_not_replaced}"):
        assert len(stage.ask(change)) == 1
        for name, reason in (("other", "backup of the database 'main'"), ("main", "checksum")):
            command = ["restore", "--org", "acme", name, "--replace", "--input", old]
            assert reason in stage.run(*command, exit_code=1).stderr


def test_a_backup_goes_to_no_other_organization_by_mistake(stage: Stage, tmp_path: Path) -> None:
    """Its name may be the same: an organization chooses its own."""
    file = stage.backup(tmp_path / "main.backup")
    other = stage.run("org", "create", "acme").stdout.strip()
    command = ["restore", "--org", other, "copy", "--input"]
    for each in (file, as_before_ids(file)):
        assert f"not of {other}" in stage.run(*command, str(each), exit_code=1).stderr
    assert stage.ask("SELECT FROM databases WHERE organization_id = %s", other) == []
    stage.run(*command, str(file), "--of-another")


def test_a_restore_without_the_flag_replaces_no_existing_database(stage: Stage, tmp_path: Path) -> None:
    file = stage.backup(tmp_path / "main.backup")
    taken = stage.run("restore", "--org", "acme", "main", "--input", str(file), exit_code=1)
    assert "already" in taken.stderr
    missing = stage.run("restore", "--org", "acme", "none", "--replace", "--input", str(file), exit_code=1)
    assert "no database 'none'" in missing.stderr
    assert len(stage.ask("select from databases")) == 1


@pytest.mark.parametrize("damage", ["cut", "changed", "not one", "compressed", "another tar"])
def test_a_damaged_backup_changes_nothing(stage: Stage, tmp_path: Path, damage: str) -> None:
    before = stage.on_cell()
    with stage.owner() as owner:
        owner.execute("create table t as select g, md5(g::text) from generate_series(1, 30000) g")
    file = stage.backup(tmp_path / "main.backup")
    content = bytearray(file.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "changed":
        middle = content.index(hashlib.md5(b"25000").hexdigest().encode())
        content[middle] ^= 1
    elif damage == "compressed":
        content = bytearray(gzip.compress(content))
    elif damage == "another tar":
        content = bytearray(foreign_tar())
    else:
        content = bytearray(b"PGDMP and so on" * 1000)
    file.write_bytes(content)
    for arguments in (["copy"], ["main", "--replace"]):
        failed = stage.run("restore", "--org", "acme", *arguments, "--input", str(file), exit_code=1)
        assert "backup" in failed.stderr
        assert failed.stdout == ""
    states = dict(stage.ask("select name, state from databases where state <> 'deleted'"))
    assert states == {"main": "ready"}
    assert stage.on_cell() == before


def foreign_tar() -> bytes:
    """A tar of somebody else's, with a name in Latin-1."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT, encoding="latin-1") as tar:
        tar.addfile(tarfile.TarInfo("für später"), io.BytesIO())
    return written.getvalue()


def test_a_crashed_restore_leaves_an_unusable_draft_that_is_dropped(stage: Stage, tmp_path: Path) -> None:
    before = stage.on_cell()
    with stage.owner() as owner:
        owner.execute("create table t as select g, md5(g::text) from generate_series(1, 60000) g")
    content = stage.backup(tmp_path / "main.backup").read_bytes()
    process = stage.start("restore", "--org", "acme", "copy", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(content[: len(content) // 2])
    process.stdin.flush()
    wait_for(lambda: stage.ask("select from databases where name = 'copy'"), 60, lambda: "there is no draft")
    process.kill()
    process.wait()
    process.stdin.close()
    assert stage.ask("select state, restores_to from databases where name = 'copy'") == [("deleting", None)]
    stage.ask("update databases set work_after = now() where name = 'copy'")
    asyncio.run(finish(stage.dsn))
    assert dict(stage.ask("select name, state from databases")) == {"main": "ready", "copy": "deleted"}
    assert stage.on_cell() == before


async def finish(dsn: str) -> None:
    async with Directory.open(dsn) as directory:
        await Finisher(directory, print).finish_some()


def test_forced_row_security_is_refused_rather_than_rows_lost(stage: Stage, tmp_path: Path) -> None:
    with stage.owner() as owner:
        owner.execute("create table t (a int)")
        owner.execute("alter table t enable row level security, force row level security")
    failed = stage.run("backup", "--org", "acme", "main", "--output", str(tmp_path / "x"), exit_code=1)
    assert "NO FORCE ROW LEVEL SECURITY" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_restored_completely_and_only_into_an_empty_database(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "directory.backup"
    stage.run("backup", "--directory", "--output", str(file))
    refused = stage.run("restore", "--directory", "--input", str(file), exit_code=1)
    assert "not empty" in refused.stderr
    other = Stage(stage.postgres, stage.postgres.fresh_database())
    other.run("restore", "--directory", "--input", str(file))
    for table in ("organizations", "cells", "databases", "roles", "audit", "alembic_version"):
        query = f"select t::text from {table} t order by 1"
        assert other.ask(query) == stage.ask(query) != []
    damaged = Stage(stage.postgres, stage.postgres.fresh_database())
    content = bytearray(file.read_bytes())
    content[content.index(b"acme")] ^= 1
    file.write_bytes(content)
    assert "checksum" in damaged.run("restore", "--directory", "--input", str(file), exit_code=1).stderr
    assert damaged.ask("select from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace") == []


def test_what_was_unfinished_in_a_restored_directory_waits(stage: Stage, tmp_path: Path) -> None:
    """It has ended since the backup. A control plane that went on with it could drop what is in service."""
    file = tmp_path / "directory.backup"
    stage.ask(
        "insert into restores (id, organization_id, database_id, target_id, cell_id, point, actor_kind, state,"
        " alive_until) select 'rst_1', organization_id, id, id, cell_id, now(), 'key', 'running', now() from databases"
    )
    stage.ask("update databases set state = 'deleting', work_after = now() returning id")
    stage.run("backup", "--directory", "--output", str(file))
    other = Stage(stage.postgres, stage.postgres.fresh_database())
    assert "7 days: 1." in other.run("restore", "--directory", "--input", str(file)).stderr
    assert other.ask("select from databases where work_after < now() + interval '6 days'") == []
    # The database may have been restored, and written to since.
    assert other.ask("select state, error_code from restores") == [("failed", "restore_abandoned")]


def test_two_backups_into_one_file_do_not_collide(stage: Stage, tmp_path: Path) -> None:
    fill(stage, 1)
    file = tmp_path / "main.backup"
    command = ("backup", "--org", "acme", "main", "--output", str(file))
    with stage.owner() as owner:
        # Both wait for this with their files open, so that both are at work at the same time.
        owner.execute("begin; lock table narrow")
        both = [stage.start(*command, stderr=subprocess.DEVNULL) for _ in range(2)]
        wait_for(lambda: len(list(tmp_path.glob("*.part"))) == 2, 60, lambda: "not two files")
        owner.execute("rollback")
    assert [each.wait(60) for each in both] == [0, 0]
    assert list(tmp_path.iterdir()) == [file]
    stage.run("restore", "--org", "acme", "copy", "--input", str(file))
    assert stage.checksums("copy") == stage.checksums()


def test_a_backup_fails_if_pg_dump_fails_after_its_first_output(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "pg_dump"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 15 && exit\nprintf PGDMP\nexit 3\n')
    broken.chmod(0o755)
    monkeypatch.setattr(backup, "find_program", lambda *_: broken)

    async def run(output: io.BytesIO) -> None:
        async with Directory.open(stage.dsn) as directory:
            await backup.backup_database(directory, await database_of(directory), output, Bar())

    with pytest.raises(RequestError, match="pg_dump failed"):
        asyncio.run(run(output := io.BytesIO()))
    file = tmp_path / "main.backup"
    file.write_bytes(output.getvalue())
    stage.run("restore", "--org", "acme", "copy", "--input", str(file), exit_code=1)


async def database_of(directory: Directory) -> DatabaseRecord:
    owner = await organizations.get(directory, "acme")
    return await databases.get_named(directory, owner.id, "main")
