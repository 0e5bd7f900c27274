"""What tests of the control plane start from: clusters that all tests share, a directory of its own for each."""

from collections.abc import AsyncIterator, Iterator

import pytest

from plainsql_server.control_plane import cells, organizations
from plainsql_server.directory.cells import CellRecord
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.migrations import migrate
from plainsql_server.directory.organizations import OrganizationRecord
from server.tests.postgres import SUPERUSER, Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    fresh = postgres.fresh_database()
    migrate(fresh)
    return fresh


@pytest.fixture
async def directory(dsn: str) -> AsyncIterator[Directory]:
    async with Directory.open(dsn) as opened:
        yield opened


@pytest.fixture
async def organization(directory: Directory) -> OrganizationRecord:
    return await organizations.create(directory, "Acme", "free")


@pytest.fixture
async def cell(directory: Directory, postgres: Postgres) -> CellRecord:
    return await cells.add(directory, "local", postgres.conninfo, SUPERUSER)
