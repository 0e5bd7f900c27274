"""Branches that are refused for want of room, and the time after which one is deleted."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import branches, databases, organizations
from plainsql_server.core.errors import LimitError
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin import branching, provisioning
from server.tests.operations.stage import Stage
from server.tests.operations.test_branches import branch, branch_here, finish_all, state
from server.tests.postgres import SUPERUSER


@pytest.mark.parametrize(
    ("limit", "message"), [("MAX_PARENT_BYTES", "The database has"), ("MAX_BRANCHES_BYTES", "Your branches would have")]
)
async def test_what_is_too_large_is_not_branched(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    branch(stage, "main", "first")
    found = await provisioning.sizes_bytes(stage.postgres.conninfo, SUPERUSER, [stage.names()[0]])
    size = found[stage.names()[0]] or 0
    monkeypatch.setattr(branching, limit, size - 1 if limit == "MAX_PARENT_BYTES" else size * 3 // 2)
    with pytest.raises(LimitError, match=message) as refusal:
        await branch_here(stage)
    assert (refusal.value.code, refusal.value.retryable) == ("branch_too_large", False)
    assert stage.ask("select from databases where name = 'copy'") == []


async def test_a_full_disk_is_no_reason_to_try_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    others = stage.on_cell()

    async def fill(*_: Any) -> bool:
        raise psycopg.errors.DiskFull("could not extend file")

    monkeypatch.setattr(branching, "_create", fill)
    with pytest.raises(LimitError) as refusal:
        await branch_here(stage)
    assert (refusal.value.code, refusal.value.retryable) == ("branch_too_large", False)
    assert (state(stage), stage.on_cell()) == ("deleted", others)
    assert stage.ask("select held_until from databases where name = 'main'") == [(None,)]


async def test_a_branch_for_which_the_cell_has_no_room_is_refused_before_anything_is_copied(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent has many bytes, none of which is on the disk."""
    for limit in ("MAX_PARENT_BYTES", "MAX_BRANCHES_BYTES", "_WAL_LOG_BYTES"):
        monkeypatch.setattr(branching, limit, 2**60)
    others, engine_name = stage.on_cell(), stage.names()[0]
    with stage.admin() as admin:
        shown = "select current_setting('data_directory'), oid from pg_database where datname = current_database()"
        ((folder, oid),) = admin.execute(shown).fetchall()
    found = os.statvfs(folder)
    file = Path(folder, f"base/{oid}/large")
    file.touch()
    os.truncate(file, found.f_bavail * found.f_frsize // 3)
    try:
        size = (await provisioning.sizes_bytes(stage.postgres.conninfo, SUPERUSER, [engine_name]))[engine_name]
        with pytest.raises(LimitError, match=f"has {size:,} bytes, and its server has no room") as refusal:
            await branch_here(stage)
    finally:
        file.unlink()
    assert refusal.value.code == "branch_too_large"
    (free,) = re.findall(r"^([\d,]+) bytes are free", refusal.value.internal_context or "")
    assert abs(int(free.replace(",", "")) - found.f_bavail * found.f_frsize) < 2**30
    assert stage.on_cell() == others
    assert stage.ask("select from databases where name = 'copy'") == []
    branch(stage)


def test_a_branch_that_was_made_the_default_does_not_expire(stage: Stage) -> None:
    stage.run("database", "branch", "--org", "acme", "main", "copy", "--expires-at", "2100-01-01T00:00:00Z")
    with psycopg.connect(stage.dsn) as directory:
        directory.execute("update databases set is_default = false")
        directory.execute("update databases set is_default = true, expires_at = now() where name = 'copy'")
    asyncio.run(finish_all(stage))
    assert state(stage) == "ready"


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_branch_that_is_restored_after_its_time_no_longer_expires(stage: Stage, is_over: bool) -> None:
    stage.run("database", "branch", "--org", "acme", "main", "copy", "--expires-at", "2100-01-01T00:00:00Z")
    async with Directory.open(stage.dsn) as directory:
        owner = await organizations.get(directory, "acme")
        made = await databases.get_named(directory, owner.id, "copy")
        deleted = await databases.delete(directory, made, restore_s=60, restorable=True)
        if is_over:
            stage.ask("update databases set expires_at = now() where name = 'copy'")
        restored = await databases.restore(directory, deleted)
        assert (restored.expires_at is None) is is_over
        await branches.expire(directory)
    assert state(stage) == "ready"
