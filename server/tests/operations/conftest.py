"""What tests of the operator's view start from: one cluster for all of them, a directory and a cell for each."""

from collections.abc import Iterator

import pytest

from server.tests.operations.stage import Stage
from server.tests.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def stage(postgres: Postgres) -> Stage:
    return Stage.made(postgres)
