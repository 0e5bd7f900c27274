"""A commit that waits for a standby: it is neither shown nor acknowledged before it is on two machines."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from plainsql_server.engine.admin import activity
from plainsql_server.engine.admin.reaping import CellWatch
from server.tests.cell import Cell, new_cell
from server.tests.load import STALL_S, Node, new_tag, running_node
from server.tests.postgres import SUPERUSER, running_postgres

pytestmark = pytest.mark.chaos

INSERT = "insert into waiting values ($1)"


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    with running_postgres() as postgres:
        # The same server twice: what is known to have several hosts is expected to have standbys.
        folder = postgres.socket_dir
        yield new_cell(postgres, f"host={folder},{folder} port=5432,5432 target_session_attrs=primary")


@pytest.fixture(scope="module")
def node(cell: Cell) -> Iterator[Node]:
    with running_node(cell.directory_dsn, cell_max_connections=32, principal_cache_ms=600_000) as running:
        yield running


@pytest.fixture(autouse=True)
async def table(cell: Cell, node: Node) -> None:
    async with node.client(cell.key) as client:
        assert (await client.query("drop table if exists waiting")).succeeded
        assert (await client.query("create table waiting (n int primary key)")).succeeded


@asynccontextmanager
async def no_standby(cell: Cell) -> AsyncIterator[None]:
    """Commits of the customer's database wait for a standby that is not there, for the length of the block."""
    set_standbys(cell, "nobody")
    try:
        await commits_wait(cell)
        yield
    finally:
        set_standbys(cell, "")


def set_standbys(cell: Cell, names: str) -> None:
    with cell.postgres.connect() as admin:
        admin.execute("set synchronous_commit = local")
        admin.execute(f"alter system set synchronous_standby_names = '{names}'".encode())
        admin.execute("select pg_reload_conf()")


async def commits_wait(cell: Cell) -> None:
    """Returns when commits wait: the checkpointer tells the others to, some time after the reload."""
    async with (
        asyncio.timeout(30),
        await psycopg.AsyncConnection.connect(cell.postgres.dsn(), autocommit=True) as probe,
    ):
        commit: asyncio.Task[object] | None = None
        while probe.info.backend_pid not in waiting(cell, SUPERUSER):
            if commit is None or commit.done():
                commit = asyncio.create_task(probe.execute("select pg_logical_emit_message(true, 'probe', '')"))
            await asyncio.sleep(0.01)
        assert commit is not None
        with cell.postgres.connect() as admin:
            admin.execute("select pg_cancel_backend(%s)", (probe.info.backend_pid,))
        await commit


async def waits(cell: Cell, count: int = 1) -> None:
    """Returns when so many of the customer's commits wait."""
    async with asyncio.timeout(30):
        while len(waiting(cell)) < count:  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.01)


def waiting(cell: Cell, roles: str = r"o\_%") -> list[int]:
    # The directory, which is on the same server, waits as well.
    question = "select pid from pg_stat_activity where wait_event = 'SyncRep' and usename like %s"
    with cell.postgres.connect() as admin:
        rows = admin.execute(question, (roles,)).fetchall()
    return [row[0] for row in rows]


async def committed(cell: Cell, numbers: set[int]) -> None:
    """Returns when these rows, and no others, have been committed: the checkpointer lets them, after the reload."""
    async with asyncio.timeout(30):
        while numbers_in(cell) != numbers:  # noqa: ASYNC110  # another process is watched
            await asyncio.sleep(0.01)


def numbers_in(cell: Cell) -> set[int]:
    with psycopg.connect(cell.customer_dsn()) as database:
        return {row[0] for row in database.execute("select n from waiting").fetchall()}


async def test_at_its_deadline_an_unreplicated_commit_is_unknown_and_invisible(cell: Cell, node: Node) -> None:
    async with node.client(cell.key) as client, node.client(cell.key) as reader, no_standby(cell):
        answer = await client.query(INSERT, 1, timeout_ms=1_000)
        assert answer.code == "statement_timeout", answer
        assert answer.outcome == "unknown", answer
        assert answer.elapsed_s <= 2.2 + STALL_S
        await client.post(
            "/v1/transaction", {"statements": [{"sql": INSERT, "params": [2]}], "timeout_ms": 1_000}
        )  # fmt: skip
        answer = await client.answer()
        assert answer.code == "transaction_deadline_exceeded", answer
        assert answer.outcome == "unknown", answer
        assert len(waiting(cell)) == 2, "the wait of a committed transaction was ended"
        seen = await reader.query("select count(*) as n from waiting", timeout_ms=20_000)
        assert seen.value == 0, "others read what may still be lost"
    await committed(cell, {1, 2})


async def test_a_cancelled_wait_for_a_standby_has_an_unknown_outcome(cell: Cell, node: Node) -> None:
    """PostgreSQL says that it has committed, with a warning: it may be on one machine only."""
    async with node.client(cell.key) as client, no_standby(cell):
        await client.send("insert into waiting values (3)", timeout_ms=20_000)
        await waits(cell)
        with cell.postgres.connect() as admin:
            admin.execute("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
        answer = await client.answer()
    assert answer.status == 503, answer
    assert answer.outcome == "unknown", answer


async def test_a_transaction_before_its_commit_is_cancelled_at_its_deadline(cell: Cell, node: Node) -> None:
    async with node.client(cell.key) as client:
        tag = new_tag()
        answer = await client.query(f"/* {tag} */ select pg_sleep(20)", timeout_ms=300)
        assert answer.code == "statement_timeout", answer
        assert answer.elapsed_s <= 1.0 + STALL_S
        with cell.postgres.connect() as admin:
            question = "select count(*) from pg_stat_activity where state = 'active' and query like %s"
            assert admin.execute(question, (f"/* {tag}%",)).fetchone() == (0,)


async def test_a_waiting_commit_of_a_disconnected_client_is_left_alone(cell: Cell, node: Node) -> None:
    async with node.client(cell.key) as client, no_standby(cell):
        await client.send("insert into waiting values (4)", timeout_ms=20_000)
        await waits(cell)
        client.drop()
        await asyncio.sleep(1.5)
        assert len(waiting(cell)) == 1
    await committed(cell, {4})


async def test_neither_the_reaper_nor_an_operator_ends_it(cell: Cell, node: Node) -> None:
    async with node.client(cell.key) as client, no_standby(cell):
        await client.send("insert into waiting values (5)", timeout_ms=20_000)
        await waits(cell)
        (pid,) = waiting(cell)
        watch = await CellWatch.open(cell.postgres.conninfo, SUPERUSER)
        assert watch is not None
        found = [each for each in await watch.old_transactions(0.0) if each.pid == pid]
        assert [await watch.end(each) for each in found] == [False]
        await watch.close()
        async with activity.watching(cell.postgres.conninfo, SUPERUSER) as connection:
            for terminate in (False, True):
                assert not await activity.end_statement(connection, pid, [found[0].role], terminate=terminate)
        assert waiting(cell) == [pid]
