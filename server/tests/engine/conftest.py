"""What tests of the engine room start from: a real PostgreSQL, for whose text everything here was written."""

from collections.abc import Iterator

import psycopg
import pytest

from server.tests.postgres import Postgres, running_postgres

ROLE = "tenant"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(scope="session")
def engine(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with postgres.connect() as connection:
        yield connection


@pytest.fixture
def database(postgres: Postgres, engine: psycopg.Connection) -> Iterator[str]:
    """An empty database of a role that is no superuser."""
    name = psycopg.conninfo.conninfo_to_dict(postgres.fresh_database())["dbname"]
    if not engine.execute("select from pg_roles where rolname = %s", (ROLE,)).rowcount:
        engine.execute(f"create role {ROLE} login")
    engine.execute(f"alter database {name} owner to {ROLE}")
    yield str(name)
    engine.execute(f"drop database {name} with (force)")
