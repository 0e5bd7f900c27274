"""Connections to a directory as its owner and as a data plane."""

from collections.abc import Iterator

import psycopg
import pytest

from plainsql_server.directory.rights.grants import Role
from server.tests.postgres import as_role


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def data(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(as_role(dsn, Role.DATA), autocommit=True) as connection:
        yield connection
