"""What tests of the directory start from: one cluster for all of them, a database of its own for each."""

from collections.abc import AsyncIterator, Iterator

import pytest

from plainsql_server.directory.connection import Directory
from plainsql_server.directory.migrations import migrate
from server.tests.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def empty_dsn(postgres: Postgres) -> str:
    return postgres.fresh_database()


@pytest.fixture
def dsn(empty_dsn: str) -> str:
    migrate(empty_dsn)
    return empty_dsn


@pytest.fixture
async def directory(dsn: str) -> AsyncIterator[Directory]:
    async with Directory.open(dsn) as opened:
        yield opened
