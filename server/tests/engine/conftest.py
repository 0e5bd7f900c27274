"""What tests of the engine room start from: a real PostgreSQL, for whose text everything here was written."""

from collections.abc import Iterator

import psycopg
import pytest

from server.tests.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(scope="session")
def engine(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with postgres.connect() as connection:
        yield connection
