"""Backups and restores that take longer than their customer may: the control plane's reaper lets them."""

import asyncio
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psycopg
import pytest

from plainsql_server.control_plane.finishing import Finisher
from plainsql_server.control_plane.reaping import Ceilings, Reaper
from plainsql_server.core.observation import Observation, Reaped
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin.provisioning import backup_role_of
from plainsql_server.limits.tiers import TIERS
from server.tests.operations.stage import Stage

# Nobody may take longer than a fifth of a second, nor be idle for as long.
SHORT_MS = 200
SHORT = Ceilings(
    tiers=MappingProxyType(
        {
            tier: replace(
                limits, statement_timeout_ms=SHORT_MS, transaction_timeout_ms=SHORT_MS, stream_life_ms=SHORT_MS
            )
            for tier, limits in TIERS.items()
        }
    ),
    grace_s=0,
    idle_s=SHORT_MS / 1000,
)
_WAIT_S = 30.0
_COPYING = """
    select from pg_stat_activity where application_name = %s and query like 'COPY %%' and usename ~ '^[bo]_'
        and clock_timestamp() - xact_start > 0.3 * interval '1 second'
"""


@pytest.fixture
def filled(stage: Stage) -> Stage:
    with stage.owner() as owner:
        # More than pipes and buffers on the way hold, so that a program waits for the slow one.
        owner.execute("create table t as select g, repeat(md5(g::text), 30) as body from generate_series(1, 30000) g")
    return stage


def wait_until_copying(stage: Stage, program: str) -> None:
    end_s = time.monotonic() + _WAIT_S
    with stage.postgres.connect() as admin:
        while admin.execute(_COPYING, (program,)).rowcount == 0:
            assert time.monotonic() < end_s
            time.sleep(0.05)


def reap(stage: Stage) -> list[str]:
    """What one look of the reaper ends."""
    seen: list[Observation] = []

    async def look() -> None:
        async with Directory.open(stage.dsn) as directory:
            reaper = Reaper(directory, seen.append, SHORT)
            try:
                await reaper.look()
            finally:
                await reaper.close()

    asyncio.run(look())
    return [each.what for each in seen if isinstance(each, Reaped)]


def test_a_backup_is_exempt_from_reaping(filled: Stage) -> None:
    backup = filled.start("backup", "--org", "acme", "main", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until_copying(filled, "plainsql-backup")
        assert reap(filled) == []
        content, stderr = backup.communicate(timeout=60)
    finally:
        backup.kill()
        backup.wait()
    assert backup.returncode == 0, stderr
    assert b"end.json" in content[-20_000:]


def test_a_customer_cannot_end_the_backup_of_its_database(filled: Stage) -> None:
    backup = filled.start("backup", "--org", "acme", "main", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    refused = 0
    try:
        wait_until_copying(filled, "plainsql-backup")
        for customer in (filled.owner(), filled.reader()):
            with customer:
                for function in ("pg_terminate_backend", "pg_cancel_backend"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        customer.execute(
                            f"select {function}(pid) from pg_stat_activity where application_name = 'plainsql-backup'"
                        )
                    refused += 1
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    customer.execute(f"set role {backup_role_of(filled.names()[1])}")
        content, stderr = backup.communicate(timeout=60)
    finally:
        backup.kill()
        backup.wait()
    assert refused == 4
    assert backup.returncode == 0, stderr
    assert b"end.json" in content[-20_000:]


def test_the_role_of_backups_is_made_once_and_ends_with_its_database(stage: Stage, tmp_path: Path) -> None:
    """Two first backups at once, and grants of the customer's to that role."""
    role = backup_role_of(stage.names()[1])
    both = [stage.start("backup", "--org", "acme", "main", stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    with stage.owner() as owner:
        owner.execute("create table t as select 1 as a")
        owner.execute(f"grant select on t to {role}")
    stage.run("restore", "--org", "acme", "copy", "--input", str(stage.backup(tmp_path / "main.backup")))
    assert stage.checksums("copy") == stage.checksums()
    assert stage.on_cell() == {"leaked": set(), "lost": set()}
    stage.ask("update databases set state = 'deleting', work_after = now() where name = 'main'")
    asyncio.run(_finish(stage))
    with stage.postgres.connect() as admin:
        assert admin.execute("select from pg_roles where rolname = %s", (role,)).rowcount == 0


async def _finish(stage: Stage) -> None:
    async with Directory.open(stage.dsn) as directory:
        assert await Finisher(directory, print).finish_some() == 1


def test_a_restore_is_exempt_from_reaping(filled: Stage, tmp_path: Path) -> None:
    content = filled.backup(tmp_path / "main.backup").read_bytes()
    command = ["restore", "--org", "acme", "copy"]
    restore = filled.start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert restore.stdin is not None
    try:
        restore.stdin.write(content[: len(content) * 3 // 4])
        restore.stdin.flush()
        wait_until_copying(filled, "plainsql-restore")
        assert reap(filled) == []
        _, stderr = restore.communicate(content[len(content) * 3 // 4 :], timeout=60)
    finally:
        restore.kill()
        restore.wait()
    assert restore.returncode == 0, stderr
    assert filled.checksums("copy") == filled.checksums()


def test_the_application_name_of_a_backup_gives_no_exemption(stage: Stage) -> None:
    with stage.owner() as pretender:
        pretender.execute("set application_name = 'plainsql-backup'")
        pretender.execute("begin")
        pretender.execute("select pg_sleep(0.3)")
        assert reap(stage) == ["transaction"]
        with pytest.raises(psycopg.OperationalError):
            pretender.execute("select 1")
