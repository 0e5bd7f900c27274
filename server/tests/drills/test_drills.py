"""Drills: a cell or the directory is lost, nodes are restarted, cells are upgraded, all while clients write.

`make soak PART=drills` is the full size, and prints the table: acknowledged writes, lost, doubled, failed requests with
their reasons, and the longest time without an acknowledged write.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from server.tests.cell import Cell
from server.tests.customers import Customers
from server.tests.drills.writers import TABLE, drilled
from server.tests.load import Node, running_node, size
from server.tests.operations.stage import Stage
from server.tests.postgres import Postgres, running_postgres

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

_ROUNDS = size("PLAINSQL_TEST_DRILL_ROUNDS", 1)
# The restore after a lost cell waits for requests that may be running. In the gate, the loss is said to be long ago.
_IS_FULL = _ROUNDS > 1


@dataclass(frozen=True)
class Site:
    """A directory on a cluster that stays, and a cluster that a drill may kill, which holds the customer's database."""

    stage: Stage
    doomed: Cell
    key: str

    def run(self, *arguments: str) -> None:
        self.stage.run(*arguments)

    def rows(self, cluster: Postgres) -> list[str]:
        with cluster.connect(database=self.stage.names()[0]) as admin:
            return [number for (number,) in admin.execute("select n from written")]


@pytest.fixture
def site(postgres: Postgres) -> Iterator[Site]:
    with postgres.swept(), running_postgres() as doomed:
        dsn = postgres.fresh_directory()
        customers = Customers(dsn)
        customers.add_cell("doomed", doomed.conninfo)
        # The tier whose longest request is short, but not its rate limit.
        customers.add_organization("acme", "standard")
        customers.add_database("main", "acme")
        stage = Stage(postgres, dsn)
        stage.ask("update organizations set tier = 'dedicated'")
        yield made_table(Site(stage, Cell(doomed, dsn, ""), customers.new_key("write", organization="acme")))


def made_table(site: Site) -> Site:
    with psycopg.connect(site.doomed.postgres.dsn(site.stage.names()[1], site.stage.names()[0])) as owner:
        owner.execute(TABLE)
    return site


async def test_a_cell_is_lost_and_its_database_restored(site: Site, tmp_path: Path) -> None:
    survivor, file = site.stage.postgres, str(tmp_path / "main.backup")
    Customers(site.stage.dsn).add_cell("survivor", survivor.conninfo)
    with running_node(site.stage.dsn) as node:
        async with drilled(site.key, [node.port]) as load:
            await load.more()
            before_backup = frozenset(load.acknowledged)
            await asyncio.to_thread(site.run, "backup", "--org", "acme", "main", "--output", file)
            await load.more()
            await asyncio.to_thread(site.doomed.kill)
            await asyncio.sleep(0.5)
            after_backup = frozenset(load.acknowledged) - before_backup
            await asyncio.to_thread(site.run, "cell", "set", "doomed", "--state", "lost")
            if not _IS_FULL:
                site.stage.ask("update cells set lost_since = now() - interval '1 hour' where name = 'doomed'")
            restore = ("restore", "--org", "acme", "main", "--replace", "--lost", "--input", file)
            await asyncio.to_thread(site.run, *restore)
            await load.more()
    rows = site.rows(survivor)
    load.check(rows, may_lack=after_backup)
    gone = len(after_backup - set(rows))
    load.show(
        "a cell is lost, its database restored from a backup", f"{gone} writes after the backup went with the cell"
    )
    site.doomed.start()


async def test_the_directory_crashes(site: Site) -> None:
    """The directory is on a cluster of its own here; the cell is the one that stays."""
    own = site.doomed.postgres
    dsn, cell = own.fresh_directory(), site.stage.postgres
    customers = Customers(dsn)
    customers.add_cell("local", cell.conninfo)
    customers.add_organization("acme", "dedicated")
    customers.add_database("main", "acme")
    key, crashing = customers.new_key("write", organization="acme"), Site(Stage(cell, dsn), site.doomed, "")
    engine_name, owner, _ = crashing.stage.names()
    with psycopg.connect(cell.dsn(owner, engine_name)) as inside:
        inside.execute(TABLE)
    with running_node(dsn) as node:
        async with drilled(key, [node.port]) as load:
            for _ in range(_ROUNDS):
                await load.more()
                await asyncio.to_thread(site.doomed.kill)
                # Longer than cached lookups are used without the directory, in full size.
                await asyncio.sleep(15 if _IS_FULL else 1)
                await asyncio.to_thread(site.doomed.start)
                await load.more()
    load.check(crashing.rows(cell))
    load.show("the directory crashes and comes back")


async def test_the_directory_is_restored_from_a_backup(site: Site, tmp_path: Path) -> None:
    file = str(tmp_path / "directory.backup")
    await asyncio.to_thread(site.run, "backup", "--directory", "--output", file)
    with ExitStack() as stack:
        node = await asyncio.to_thread(stack.enter_context, running_node(site.stage.dsn))
        async with drilled(site.key, [node.port]) as load:
            await load.more()
            restored = Stage(site.stage.postgres, site.stage.postgres.fresh_database())
            await asyncio.to_thread(restored.run, "restore", "--directory", "--input", file)
            # It gives the planes their rights again, which a backup does not contain.
            await asyncio.to_thread(restored.run, "migrate")
            other = await asyncio.to_thread(stack.enter_context, running_node(restored.dsn))
            await asyncio.to_thread(lose, site.stage)
            load.ports = [other.port]
            await asyncio.to_thread(node.stop)
            await load.more()
    load.check(Site(restored, site.doomed, "").rows(site.doomed.postgres))
    load.show("the directory is lost and restored from a backup")


def lose(stage: Stage) -> None:
    """Nobody can log in to this directory any more."""
    name = psycopg.conninfo.conninfo_to_dict(stage.dsn)["dbname"]
    with stage.postgres.connect() as admin:
        admin.execute(f'alter database "{name}" allow_connections false')
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))


@contextmanager
def two_nodes(dsn: str) -> Iterator[list[Node]]:
    with running_node(dsn) as first, running_node(dsn) as second:
        yield [first, second]


async def test_nodes_are_restarted_one_by_one(site: Site) -> None:
    with two_nodes(site.stage.dsn) as nodes:
        async with drilled(site.key, [node.port for node in nodes]) as load:
            for node in nodes * _ROUNDS:
                await load.more()
                await asyncio.to_thread(node.stop)
                await load.more()
                await asyncio.to_thread(node.start)
            await load.more()
    load.check(site.rows(site.doomed.postgres))
    load.show("nodes are restarted one by one")


async def test_cells_are_upgraded_and_nodes_restarted(site: Site) -> None:
    """As after the installation of a version that gives databases other privileges and functions."""
    engine_name = site.stage.names()[0]
    with two_nodes(site.stage.dsn) as nodes, site.doomed.postgres.connect() as admin:
        async with drilled(site.key, [node.port for node in nodes]) as load:
            for _ in range(_ROUNDS):
                await load.more()
                admin.execute(f"comment on database {engine_name} is 'older'")
                admin.execute("comment on database plainsql_template is 'older'")
                await asyncio.to_thread(site.run, "upgrade")
                for node in nodes:
                    await asyncio.to_thread(node.stop)
                    await asyncio.to_thread(node.start)
                    await load.more()
        query = "select shobj_description(oid, 'pg_database') from pg_database where datname = %s"
        assert admin.execute(query, (engine_name,)).fetchone() != ("older",)
    load.check(site.rows(site.doomed.postgres))
    load.show("cells are upgraded, nodes restarted one by one")
