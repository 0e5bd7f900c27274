"""What tests of the engine start from: a real PostgreSQL, for whose text everything here was written."""

from collections.abc import Iterator

import psycopg
import pytest

from server.tests.postgres import Postgres

ROLE = "tenant"


@pytest.fixture(scope="module")
def engine(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with postgres.connect() as connection:
        yield connection


@pytest.fixture
def database(postgres: Postgres, engine: psycopg.Connection) -> Iterator[str]:
    """An empty database of a role that is no superuser."""
    with postgres.swept():
        name = psycopg.conninfo.conninfo_to_dict(postgres.fresh_database())["dbname"]
        engine.execute(f"create role {ROLE} login")
        engine.execute(f"alter database {name} owner to {ROLE}")
        yield str(name)
