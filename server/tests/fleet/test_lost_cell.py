"""A cell is lost: its databases are restored elsewhere without it, and no second copy ever takes writes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from plainsql_server.control_plane import organizations
from plainsql_server.core.errors import ConflictError
from plainsql_server.directory import databases
from plainsql_server.directory.connection import Directory
from plainsql_server.operations.restore import RestoreTimes, replace_database
from server.tests.fleet.finishing import finish
from server.tests.fleet.stage import Fleet
from server.tests.load import Client, running_node
from server.tests.operations.stage import Stage

pytestmark = pytest.mark.chaos

LOCAL = ("cell", "set", "local", "--state", "lost")


def operator(fleet: Fleet) -> Stage:
    """The operator's shell; the directory is beside the cell `local`, and stays."""
    return Stage(fleet.clusters["local"], fleet.dsn)


@contextmanager
def cut_off(fleet: Fleet) -> Iterator[None]:
    """Nobody reaches the cell `local` by what the directory says, and it lives on."""
    conninfo = fleet.clusters["local"].conninfo
    change = "update cells set conninfo = %s where name = 'local'"
    operator(fleet).ask(change, "host=/nowhere port=1")
    try:
        yield
    finally:
        operator(fleet).ask(change, conninfo)


def lose_long_ago(fleet: Fleet) -> None:
    """The cell is lost, and that is so long ago that every request has ended."""
    operator(fleet).run(*LOCAL)
    operator(fleet).ask("update cells set lost_since = lost_since - interval '1 hour' where name = 'local'")


@pytest.fixture
def backed_up(fleet: Fleet, tmp_path: Path) -> tuple[Fleet, Path]:
    with fleet.now.owner() as owner:
        owner.execute("create table t (a int)")
        owner.execute("insert into t values (1)")
    file = fleet.now.backup(tmp_path / "main.backup")
    with fleet.now.owner() as owner:
        owner.execute("insert into t values (2)")
    return fleet, file


def restore(fleet: Fleet, file: Path, *options: str, exit_code: int = 0) -> str:
    (id_,) = operator(fleet).ask("select id from databases where name = 'main'")[0]
    arguments = ("restore", id_, "--replace", "--input", str(file), *options)
    ended = operator(fleet).run(*arguments, exit_code=exit_code)
    if not exit_code:
        assert ended.stdout.strip() == id_
    return ended.stderr


def identity(fleet: Fleet) -> list[tuple[object, ...]]:
    return operator(fleet).ask("select id, name, is_default, state from databases where name = 'main'")


async def test_a_database_of_a_lost_cell_is_restored_with_its_id_name_keys_and_default(
    backed_up: tuple[Fleet, Path],
) -> None:
    fleet, file = backed_up
    before = identity(fleet)
    with cut_off(fleet):
        refused = await asyncio.to_thread(restore, fleet, file, exit_code=1)
        assert "does not respond" in refused
        assert "--state lost" in refused
        assert "not lost" in await asyncio.to_thread(restore, fleet, file, "--lost", exit_code=1)
        await asyncio.to_thread(lose_long_ago, fleet)
        assert "use --lost" in await asyncio.to_thread(restore, fleet, file, exit_code=1)
        await asyncio.to_thread(restore, fleet, file, "--lost")
    assert identity(fleet) == before
    assert fleet.cell() == "second"
    with running_node(fleet.dsn) as node:
        async with Client(node.port, fleet.key) as client:
            assert (await client.query("select sum(a)::int from t")).value == 1
    # The old copy is recorded, and its connections end when the cell is back.
    ((engine_name, owner),) = operator(fleet).ask(
        "select d.engine_name, r.engine_name from databases d join roles r on r.database_id = d.id and r.kind = 'owner'"
        " where d.name ~ '^main-replaced' and d.state = 'deleting' and d.restores_to = 'ready'"
    )
    with fleet.clusters["local"].connect(owner, engine_name) as stale:
        operator(fleet).run("cell", "set", "local", "--state", "active")
        with pytest.raises(psycopg.OperationalError):
            stale.execute("insert into t values (3)")
    operator(fleet).ask("update databases set restorable_until = now(), work_after = now() where state = 'deleting'")
    await asyncio.to_thread(finish, fleet)
    assert fleet.leaked() == fleet.known_leaks


class Steps:
    """The steps of a restore, as it reports them. `waits` is set as soon as it says that it waits."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.waits = asyncio.Event()

    def step(self, label: str, total: int | None = None, *, in_bytes: bool = True) -> None:  # noqa: ARG002
        self.labels.append(label)
        if label == "last requests":
            self.waits.set()

    def at(self, done: int) -> None:
        pass


async def test_a_restore_waits_until_no_process_can_write_to_the_lost_cell(backed_up: tuple[Fleet, Path]) -> None:
    fleet, file = backed_up
    steps, times = Steps(), RestoreTimes(restore_s=3600, applied_after_s=0)
    with cut_off(fleet), file.open("rb") as source:
        await asyncio.to_thread(operator(fleet).run, *LOCAL)
        async with Directory.open(fleet.dsn) as directory:
            organization = await organizations.get(directory, "acme")
            target = await databases.find(directory, organization.id, "main")
            assert target is not None
            restoring = asyncio.create_task(
                replace_database(directory, target, source, steps, times=times, lost=True)
            )  # fmt: skip
            waiting = asyncio.create_task(steps.waits.wait())
            await asyncio.wait([restoring, waiting], return_when=asyncio.FIRST_COMPLETED)
            # A request of this tier may run there for minutes. Meanwhile the cell is back, and may have taken writes.
            operator(fleet).ask("update cells set state = 'down', lost_since = null where name = 'local'")
            with pytest.raises(ConflictError, match="Nothing was restored"):
                await restoring
    assert steps.labels[-1] == "last requests"
    assert fleet.cell() == "local"
    with fleet.now.owner() as owner:
        assert owner.execute("select count(*) from t").fetchone() == (2,)
    assert fleet.leaked() == fleet.known_leaks


def test_an_incomplete_backup_replaces_nothing_on_a_lost_cell(backed_up: tuple[Fleet, Path], tmp_path: Path) -> None:
    fleet, file = backed_up
    whole, cut = file.read_bytes(), tmp_path / "cut.backup"
    with cut_off(fleet):
        lose_long_ago(fleet)
        for length in (len(whole) // 2, whole.index(b"end.json")):
            cut.write_bytes(whole[:length])
            assert "backup" in restore(fleet, cut, "--lost", exit_code=1)
    assert fleet.cell() == "local"
    assert fleet.leaked() == fleet.known_leaks


def test_a_lost_cell_that_answers_is_fenced_as_any_other(backed_up: tuple[Fleet, Path]) -> None:
    fleet, file = backed_up
    _, role, _ = fleet.now.names()
    engine_name = fleet.now.names()[0]
    operator(fleet).run(*LOCAL)
    with fleet.clusters["local"].connect(role, engine_name) as stale:
        restore(fleet, file, "--lost")
        with pytest.raises(psycopg.OperationalError):
            stale.execute("insert into t values (3)")
    assert fleet.cell() == "second"


def test_a_cell_is_removed_when_it_is_empty_or_lost(backed_up: tuple[Fleet, Path]) -> None:
    fleet, file = backed_up
    remove = ("cell", "remove", "local", "--yes")
    assert "Add --yes" in operator(fleet).run("cell", "remove", "local", exit_code=2).stderr
    assert "holds databases" in operator(fleet).run(*remove, exit_code=1).stderr
    with cut_off(fleet):
        lose_long_ago(fleet)
        assert "1 databases were lost" in operator(fleet).run(*remove).stderr
        assert "There is no cell" in operator(fleet).run(*remove, exit_code=1).stderr
        restore(fleet, file, "--lost")
    assert fleet.cell() == "second"
    # Its name is free, and what is deleted there is deleted without it.
    operator(fleet).ask("update databases set restorable_until = now(), work_after = now() where state = 'deleting'")
    finish(fleet)
    operator(fleet).run("cell", "remove", "second", "--yes", exit_code=1)
    conninfo = fleet.clusters["local"].conninfo
    operator(fleet).run("cell", "add", "local", "--conninfo", conninfo, "--admin-role", "plainsql_admin")
