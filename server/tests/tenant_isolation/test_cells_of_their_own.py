"""An organization with a cell of its own: only its databases go there, shown with two real cells."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from plainsql_server.control_plane import cells, databases, keys, organizations
from plainsql_server.core.errors import EngineError
from plainsql_server.core.principal import Scope
from plainsql_server.directory.cells import CellState
from plainsql_server.directory.connection import Directory
from server.tests.load import running_node
from server.tests.postgres import SUPERUSER, Postgres, running_postgres


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Postgres, Postgres]]:
    with running_postgres() as shared, running_postgres() as own:
        yield shared, own


@pytest.fixture
def dsn(two: tuple[Postgres, Postgres]) -> str:
    return two[0].fresh_directory()


@pytest.fixture
async def directory(dsn: str) -> AsyncIterator[Directory]:
    async with Directory.open(dsn) as opened:
        yield opened


def databases_on(postgres: Postgres) -> set[str]:
    with postgres.connect() as admin:
        return {name for (name,) in admin.execute("select datname from pg_database where datname ~ '^d_'")}


async def test_databases_go_to_the_cell_of_their_organization_and_work_there(
    two: tuple[Postgres, Postgres], dsn: str, directory: Directory
) -> None:
    shared, own = two
    big = await organizations.create(directory, "Big", "dedicated")
    small = await organizations.create(directory, "Small", "free")
    await cells.add(directory, "shared", shared.conninfo, SUPERUSER)
    await cells.add(directory, "bigs", own.conninfo, SUPERUSER, big.id)
    theirs = {(await databases.create(directory, big.id, f"big-{n}")).engine_name for n in range(3)}
    # Its cell is fuller than the other by then, and the other way round: neither counts.
    others = {(await databases.create(directory, small.id, f"small-{n}")).engine_name for n in range(3)}
    assert databases_on(own) == theirs
    assert databases_on(shared) == others
    _, secret = await keys.create(directory, big.id, "test", (Scope.WRITE,))
    with running_node(dsn) as node:
        async with node.client(secret.text) as client:
            answer = await client.query("select current_database()::text as name")
    assert answer.value in theirs


async def test_an_organization_with_a_full_dedicated_cell_gets_no_shared_one(
    two: tuple[Postgres, Postgres], dsn: str, directory: Directory
) -> None:
    shared, own = two
    big = await organizations.create(directory, "Big", "dedicated")
    await cells.add(directory, "shared", shared.conninfo, SUPERUSER)
    await cells.add(directory, "bigs", own.conninfo, SUPERUSER, big.id)
    with psycopg.connect(dsn) as connection:
        connection.execute("update cells set state = %s where name = 'bigs'", (CellState.DRAINING,))
    before = databases_on(shared)
    with pytest.raises(EngineError) as failure:
        await databases.create(directory, big.id, "main")
    assert failure.value.code == "no_active_cell"
    assert databases_on(shared) == before
