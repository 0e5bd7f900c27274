"""Branches that are refused for want of room, which of them count, and the time after which one is deleted."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from plainsql_server.control_plane import branches, databases, organizations
from plainsql_server.control_plane.branches import NewBranch
from plainsql_server.control_plane.restoring import restores
from plainsql_server.core.actor import OPERATOR
from plainsql_server.core.clock import now
from plainsql_server.core.errors import EngineError, LimitError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.restoring import restores as stored_restores
from plainsql_server.directory.restoring.workers import note_worker
from plainsql_server.engine.admin import branching, provisioning
from plainsql_server.engine.admin.cell import DISK_FILE
from plainsql_server.engine.admin.measures import DISK_MAX_AGE_S, disk_space, disk_space_of
from plainsql_server.operations.upkeep.disk_figure import DiskFigure
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage
from server.tests.operations.test_branches import branch, branch_here, finish_all, state
from server.tests.postgres import SUPERUSER

_FREE = 2**60
_FIGURE = f"{_FREE} {_FREE}\n"


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


def missing(path: object) -> os.statvfs_result:
    raise FileNotFoundError(path)


@pytest.fixture
def elsewhere(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cell's disk is not this machine's. The data folder, in which a figure may be written."""
    with stage.admin() as admin:
        ((folder,),) = admin.execute("select current_setting('data_directory')").fetchall()
    monkeypatch.setattr(os, "statvfs", missing)
    yield Path(folder)
    Path(folder, DISK_FILE).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("text", "age_s"),
    [(None, 0), ("", 0), ("much\n", 0), (f"{_FREE}\n", 0), (f"{_FREE} {_FREE}", 0), (_FIGURE, DISK_MAX_AGE_S + 9),
     (_FIGURE, -DISK_MAX_AGE_S - 9)],
)  # fmt: skip
async def test_no_branch_is_made_if_it_is_not_known_what_is_free(
    stage: Stage, elsewhere: Path, text: str | None, age_s: float
) -> None:
    others = stage.on_cell()
    if text is not None:
        write_figure(elsewhere, text, age_s)
    with pytest.raises(EngineError) as refusal:
        await branch_here(stage)
    assert (refusal.value.code, refusal.value.retryable) == ("creation_unavailable", True)
    assert "not known" in (refusal.value.internal_context or "")
    assert stage.on_cell() == others


async def test_a_figure_that_postgresql_cannot_read_is_none(stage: Stage, elsewhere: Path) -> None:
    write_figure(elsewhere, _FIGURE)
    (elsewhere / DISK_FILE).chmod(0)
    with pytest.raises(EngineError) as refusal:
        await branch_here(stage)
    assert refusal.value.code == "creation_unavailable"


def test_doctor_says_what_is_free_or_that_it_is_not_known(stage: Stage, elsewhere: Path) -> None:
    assert_found(doctor(stage), "so no branches can be made", "Start `plainsql-server cell guard`", "warning")
    write_figure(elsewhere, f"{7 * 10**9} {100 * 10**9}\n")
    found = doctor(stage)
    assert_found(found, "has 7 % free (7.0 GB)", "Enlarge the disk", "warning")
    assert not [each for each in found if "no branches can be made" in each["found"]]


def write_figure(folder: Path, text: str, age_s: float = 0.0) -> None:
    file = folder / DISK_FILE
    file.write_text(text)
    file.chmod(0o644)
    at_s = time.time() - age_s
    os.utime(file, (at_s, at_s))


async def test_a_branch_leaves_a_tenth_of_the_disk_free(stage: Stage, elsewhere: Path) -> None:
    found = await provisioning.sizes_bytes(stage.postgres.conninfo, SUPERUSER, [stage.names()[0]])
    size = found[stage.names()[0]] or 0
    write_figure(elsewhere, f"{size * 11} {size * 101}\n")
    with pytest.raises(LimitError, match="has no room") as refusal:
        await branch_here(stage)
    assert refusal.value.code == "branch_too_large"
    assert stage.ask("select from databases where name = 'copy'") == []
    write_figure(elsewhere, f"{size * 11} {size * 99}\n")
    await branch_here(stage)
    assert state(stage) == "ready"


async def test_what_the_guard_writes_is_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage.admin() as admin:
        ((folder,),) = admin.execute("select current_setting('data_directory')").fetchall()
    messages: list[str] = []
    ended = threading.Event()
    ended.set()
    DiskFigure(Path(folder), messages.append).run(ended)
    expected = disk_space_of(folder)
    monkeypatch.setattr(os, "statvfs", missing)
    try:
        async with provisioning.admin_connection(stage.postgres.conninfo, SUPERUSER, "postgres") as cell:
            found = await disk_space(cell)
    finally:
        Path(folder, DISK_FILE).unlink()
    assert found is not None
    assert found.total_bytes == expected.total_bytes
    assert abs(found.free_bytes - expected.free_bytes) < 2**30
    assert messages == []
    assert not Path(folder, f"{DISK_FILE}.new").exists()


def test_the_guard_tells_once_why_it_cannot_write(tmp_path: Path) -> None:
    messages: list[str] = []
    (tmp_path / f"{DISK_FILE}.new").mkdir()
    figure, ended = DiskFigure(tmp_path, messages.append), threading.Event()
    ended.set()
    # No server uses the folder.
    figure.run(ended)
    assert messages == []
    (tmp_path / "postmaster.pid").touch()
    for _ in range(2):
        figure.run(ended)
    (message,) = messages
    assert "cannot write what is free" in message


def test_a_branch_that_was_made_the_default_does_not_expire(stage: Stage) -> None:
    stage.run("database", "branch", "--org", "acme", "main", "copy", "--expires-at", "2100-01-01T00:00:00Z")
    with psycopg.connect(stage.dsn) as directory:
        directory.execute("update databases set is_default = false")
        directory.execute("update databases set is_default = true, expires_at = now() where name = 'copy'")
    asyncio.run(finish_all(stage))
    assert state(stage) == "ready"


async def test_a_branch_that_is_cancelled_during_its_checkpoint_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint writes what all tenants of the cell have changed. It could be had for nothing, again and again."""
    at_checkpoint = asyncio.Event()
    execute = psycopg.AsyncConnection.execute

    async def stand(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if query == "CHECKPOINT":
            at_checkpoint.set()
            await asyncio.Event().wait()
        return await execute(self, query, *arguments, **options)

    monkeypatch.setattr(branching, "_WAL_LOG_BYTES", 0)
    monkeypatch.setattr(psycopg.AsyncConnection, "execute", stand)
    others = stage.on_cell()
    making = asyncio.create_task(branch_here(stage))
    await at_checkpoint.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert stage.ask("select state, branch_of is not null from databases where name = 'copy'") == [("deleted", True)]
    assert stage.on_cell() == others


async def test_a_branch_for_a_restore_whose_request_is_cancelled_frees_its_name_and_does_not_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_insert = asyncio.Event()

    async def stand(*_: Any, **__: Any) -> None:
        at_insert.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(stored_restores, "insert", stand)
    async with Directory.open(stage.dsn) as directory:
        owner = await organizations.get(directory, "acme")
        parent = await databases.get_named(directory, owner.id, "main")
        await note_worker(directory, parent.cell_id, None)
        asking = asyncio.create_task(
            restores.request_branch(directory, "copy", NewBranch(parent, None), now(), OPERATOR)
        )
        await at_insert.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert stage.ask("select branch_of, work_after <= now() from databases where name = 'copy'") == [(None, True)]
    await finish_all(stage)
    assert state(stage) == "deleted"


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
